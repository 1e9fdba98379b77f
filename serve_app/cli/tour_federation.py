"""The demo's second half: who answers whom, an overload that spills, a coordinator and a region that die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

from serve_app.cli import drill, regions
from serve_app.cli.client import Client
from serve_app.cli.drill_scene import Scene
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home
from serve_app.cli.table import render
from serve_app.core.drill_verdict import Drill

CHAT: Final = "/v1/chat/completions"
#: What is asked at every entry, and the region whose language it is in the set for one machine.
ASKED: Final = (("ja", "返品したい", "cloud-a"), ("ko", "배송 기간을 알려 주세요", "cloud-b"))
#: People who ask for long answers one after the other: more than an engine has slots, for so long that it is reported.
OVERLOAD: Final = 40
OVERLOAD_S: Final = 8.0
OVERLOAD_TOKENS: Final = 200
DRILLS: Final[tuple[Drill, ...]] = ("kill-coordinator", "kill-region")


def run(home: Home, progress: Progress, *, keep: bool) -> dict[str, Any]:
    """All of it, as JSON; with ``keep`` what was killed is brought back."""
    entries = {r["name"]: regions.client(r) for r in home.read()["regions"]}
    progress.tell("tour: who answers whom")
    answers = [_ask(entries, entry, *asked) for asked in ASKED for entry in entries]
    first = next(iter(entries))
    progress.tell(f"tour: an overload of {first}")
    spilled = _overload(entries[first], ASKED[0][1])
    told: dict[str, Any] = {"answers": answers, "overload": {"entry": first, **spilled}, "drills": {}}
    scene = Scene(home, first, progress)
    for name in DRILLS:
        drill.wait_well(scene, with_plan=name == DRILLS[0] or keep)
        result, faults = drill.run_once(name, scene, restores=keep)
        told["drills"][name] = {**asdict(result), "faults": faults}
    return told


def _ask(entries: Mapping[str, Client], entry: str, language: str, text: str, wanted: str) -> dict[str, Any]:
    """One question at one entry."""
    reply = _send(entries[entry], text, 64)
    served, hops = reply.headers.get("x-grix-region"), reply.headers.get("x-grix-hops")
    expected = wanted if wanted in entries else entry
    right = (reply.status, served, hops) == (200, expected, "0" if expected == entry else "1")
    return {
        "entry": entry,
        "language": language,
        "region": served,
        "hops": hops,
        "fault": None if right else f"{reply.status}, expected 200 from {expected}",
    }


def _send(client: Client, text: str, max_tokens: int, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens, **more}
    return client.ask("POST", CHAT, body)


def _overload(client: Client, text: str) -> dict[str, Any]:
    """Long requests, more than fit, for a while: where each was served, and how many were not."""
    until_s = time.monotonic() + OVERLOAD_S

    def one(_: int) -> list[tuple[str | None, str | None]]:
        ended: list[tuple[str | None, str | None]] = []
        while time.monotonic() < until_s:
            try:
                reply = _send(client, text, OVERLOAD_TOKENS, ignore_eos=True)
            except Failed:
                ended.append((None, None))
                continue
            told = (reply.headers.get("x-grix-region"), reply.headers.get("x-grix-hops"))
            ended.append(told if reply.status == 200 else (None, None))
        return ended

    with ThreadPoolExecutor(OVERLOAD) as pool:
        ended = [told for asked in pool.map(one, range(OVERLOAD)) for told in asked]
    served = Counter(region for region, _ in ended if region is not None)
    spilled = sum(hops == "1" for _, hops in ended)
    return {"requests": len(ended), "served": dict(served), "spilled": spilled, "failed": len(ended) - served.total()}


def faults_of(told: Mapping[str, Any]) -> list[str]:
    """What did not come out as it should."""
    faults = [f"{a['language']} at {a['entry']}: {a['fault']}" for a in told["answers"] if a["fault"]]
    overload = told["overload"]
    if overload["failed"]:
        faults.append(f"overload: {overload['failed']} of {overload['requests']} requests failed")
    if not overload["spilled"]:
        faults.append("overload: nothing spilled")
    return faults + [f"{name}: {fault}" for name, result in told["drills"].items() for fault in result["faults"]]


def text_of(told: Mapping[str, Any]) -> str:
    """The same for people."""
    rows = [[a["language"], a["entry"], a["region"], a["hops"], a["fault"] or "ok"] for a in told["answers"]]
    overload = told["overload"]
    served = ", ".join(f"{n} in {region}" for region, n in overload["served"].items())
    return "\n".join(
        [
            render(["language", "entry", "served in", "hops", ""], rows),
            "",
            f"overload of {overload['entry']}: {overload['requests']} long requests: {served}; "
            f"{overload['spilled']} spilled, {overload['failed']} failed",
            *(_drill_text(name, result) for name, result in told["drills"].items()),
        ]
    )


def _drill_text(name: str, result: Mapping[str, Any]) -> str:
    failed: Sequence[str] = [
        f"{result['failed_before_first_byte']} failed without a first byte",
        f"{result['failed_mid_stream']} mid-stream",
        f"{result['hung']} hung",
    ]
    told = f"{name}: {result['requests']} requests meanwhile, {', '.join(failed)}"
    if result["lost_entry"]:
        told += f"; {result['lost_entry']} found their entry gone and went to the next"
    if result["detected_s"] is not None:
        told += f"; noticed by {result['detector']} after {result['detected_s']:.1f} s"
    return f"{told}; failover {result['failover_s']:.1f} s"
