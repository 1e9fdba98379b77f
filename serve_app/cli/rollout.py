"""``grix rollout`` and ``grix rollback``: releases of templates and routes, region by region, and back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from serve_app.cli import control, documents
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home, own_tenant
from serve_app.cli.table import render

POLL_S: Final = 0.25


def start(paths: Sequence[Path], to: str | None, home: Home, config: Sequence[Path] | None) -> dict[str, Any]:
    """Begins a rollout of documents, or of a release that was served before.

    Raises:
        Failed: with exit status 2 for what the documents or the coordinator refuse.
    """
    from cluster_configs.load import to_documents

    asked = control.admin(home, config)
    if to is not None:
        return control.ask(asked, "rollout_start", to=to)
    # Without the tenant of this folder grix could ask its regions nothing more.
    mine = [own_tenant(home)] if home.key_file.is_file() else []
    return control.ask(asked, "rollout_start", documents=to_documents(documents.load(paths, mine)))


def rollback(agent: str, to: str | None, home: Home, config: Sequence[Path] | None) -> dict[str, Any]:
    """Takes an agent back in all regions at once."""
    more = {} if to is None else {"to": to}
    return control.ask(control.admin(home, config), "rollback", agent=agent, **more)


def follow(
    told: Mapping[str, Any], wait_s: float, home: Home, config: Sequence[Path] | None, progress: Progress
) -> dict[str, Any]:
    """Waits until the rollout that ``told`` names is over.

    Raises:
        Failed: when it did not end well, or not within ``wait_s``.
    """
    asked, until_s = control.admin(home, config), time.monotonic() + wait_s
    began = told["running"]
    # A rollback of what was on its way is its abort.
    wanted = "aborted" if began is None or began["phase"] == "reverting" else "done"
    while (running := told["running"]) is not None:
        progress.tell(line_of(running))
        if time.monotonic() > until_s:
            raise Failed(f"not over after {wait_s:.0f} s (--wait), and goes on: {line_of(running)}")
        if running["phase"] == "halted":
            raise Failed(f"{line_of(running)}; go on with grix rollout resume, or take it back with grix rollout abort")
        time.sleep(POLL_S)
        told = control.ask(asked, "rollout_status")
    last = told["last"]
    if last is not None and last["outcome"] != wanted:
        raise Failed(f"rollout {last['revision']} was {last['outcome'].replace('_', ' ')}: {last['why']}")
    return dict(told)


def line_of(running: Mapping[str, Any]) -> str:
    """Where a rollout is, on one line."""
    phase = running["phase"].replace("_", " ")
    where = "" if running["region"] is None else f" {running['region']}"
    share = f" at {running['step']} %" if "canary" in running["phase"] else ""
    notes = "; ".join(part for part in (running["why"], running["waits"] and f"waits for {running['waits']}") if part)
    return f"rollout {running['revision']}: {phase}{where}{share}" + (f" ({notes})" if notes else "")


def text_of(told: Mapping[str, Any]) -> str:
    """The status for people."""
    running, last = told["running"], told["last"]
    if running is None:
        return "no rollout runs" if last is None else f"no rollout runs; the last: {_past_line(last)}"
    agents = [f"  {agent} {old[:12]} -> {new[:12]}" for agent, (old, new) in running["agents"].items()]
    rows = [
        [
            r["region"],
            f"{r['percent']} %",
            None if r["has"] is None else f"{r['has']} %",
            r["smoke"] or None,
            *_sums(r, running),
        ]
        for r in running["regions"]
    ]
    head = ["region", "share", "has", "smoke", "requests", "failed", "cut short", "other language", "canary breaks"]
    return "\n".join([line_of(running), *agents, render(head, rows)])


def _sums(region: Mapping[str, Any], running: Mapping[str, Any]) -> list[int | None]:
    """How the new release does in a region since its last step."""
    new = {(agent, releases[1]) for agent, releases in running["agents"].items()}
    counts = [c for c in region["counts"] if (c["agent"], c["release"]) in new]
    names = ("requests", "failed", "truncated", "mismatched")
    broken = sum(c["canary_breaks"] for c in region["counts"])
    return [*(sum(c[name] for c in counts) for name in names), broken] if region["counts"] else [None] * 5


def history(home: Home, config: Sequence[Path] | None) -> list[dict[str, Any]]:
    """What is over, oldest first."""
    return list(control.ask(control.admin(home, config), "rollout_history")["past"])


def history_text(past: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(map(_past_line, past)) or "no rollout was begun"


def _past_line(past: Mapping[str, Any]) -> str:
    began = datetime.fromtimestamp(past["began_unix_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    agents = ", ".join(f"{agent} {old[:12]} -> {new[:12]}" for agent, (old, new) in past["agents"].items())
    why = f" ({past['why']})" if past["why"] else ""
    return f"{began} UTC {past['revision']} by {past['who']}: {past['outcome'].replace('_', ' ')}{why}: {agents}"


def drift(home: Home, config: Sequence[Path] | None) -> list[dict[str, Any]]:
    """Who serves something else than the plan says."""
    return list(control.ask(control.admin(home, config), "drift")["drift"])


def drift_text(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "every region serves what the plan says"
    shown = [[r["region"], r["agent"] or None, r["has"][:12] or "none", r["expected"][:12], r["differs"]] for r in rows]
    return render(["region", "agent", "has", "the plan says", "differs in"], shown)
