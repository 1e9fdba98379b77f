"""App grix-region on a real Ray cluster: a Router learns of its own targets from their replicas' reports, over handles.

The coordinator is away all the time: nothing here may need it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from tests.stub_region import StubRegion, running_stub_region

LIMIT_S = 20.0
START_LIMIT_S = 10.0


@pytest.fixture(scope="module")
def region() -> Iterator[StubRegion]:
    with running_stub_region(federated=True, detector="deployment", start_limit_s=START_LIMIT_S) as made:
        yield made


def until(region: StubRegion, holds: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The first snapshot of the Router that is so."""
    deadline_s = time.monotonic() + limit_s
    while True:
        snapshot = region.fleet()
        if holds(snapshot):
            return snapshot
        assert time.monotonic() < deadline_s, snapshot
        time.sleep(0.1)


def healths(snapshot: dict[str, Any]) -> set[str]:
    return {target["health"] for target in snapshot["targets"]}


def test_the_router_learns_health_and_load_from_reports(region: StubRegion) -> None:
    # Two replicas of 64 slots, each with its own report; one of one slot.
    snapshot = until(region, lambda s: [t["slots"] for t in s["targets"]] == [128, 1] and healths(s) == {"healthy"})
    assert snapshot["epoch"] > 0
    assert [(t["agent"], t["load"]["waiting"], t["load"]["running"]) for t in snapshot["targets"]] == [
        ("qwen-chat", 0, 0),
        ("qwen-doc", 0, 0),
    ]
    (view,) = snapshot["regions"]
    assert (view["name"], view["health"], view["drained"]) == ("cloud-a", "healthy", False)


def test_requests_are_answered_and_the_deep_check_knows_no_peers(region: StubRegion) -> None:
    _, reply = region.ask()
    assert reply.status == 200 and reply.text == "one two"
    status, report = region.healthz("?deep=1")
    assert (status, report["local"], report["viaPeers"], report["drained"]) == (200, True, False, False)


def detectors(region: StubRegion) -> set[int]:
    """Processes of the language detector's running replicas."""
    rows = region.rest.details()["applications"]["grix"]["deployments"]["LanguageDetector"]["replicas"]
    return {r["pid"] for r in rows if r["state"] == "RUNNING"}


def language(region: StubRegion) -> str:
    """What the region takes a question in Japanese for; it is answered in any case."""
    _, reply = region.ask(text="私の荷物はどこにありますか。")
    assert (reply.status, reply.text) == (200, "one two")
    return reply.headers["x-grix-language"]


def test_a_detector_of_its_own_answers_and_while_it_is_killed_requests_go_on_without(region: StubRegion) -> None:
    eventually(region, lambda: language(region) == "ja", LIMIT_S)
    (victim,) = detectors(region)
    os.kill(victim, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(victim).wait(LIMIT_S)
    assert language(region) == "und"
    eventually(region, lambda: language(region) == "ja", 60.0)
    assert detectors(region) and victim not in detectors(region)


def test_engines_without_tokens_are_out_and_come_back_by_the_ramp(region: StubRegion) -> None:
    until(region, lambda s: healths(s) == {"healthy"})
    sign = region.folder / "no-tokens"
    sign.touch()
    out = until(region, lambda s: healths(s) == {"ejected"})
    assert out["targets"][0]["why"] == "no token from 2 replicas"
    sign.unlink()
    back = until(region, lambda s: healths(s) == {"healthy"})
    weights = [target["weight"] for target in back["targets"]]
    assert all(0.1 <= weight <= 0.3 for weight in weights), weights
    later = until(region, lambda s: s["targets"][0]["weight"] > 0.5, 30.0)
    assert later["generation"] > back["generation"]


def missing(region: StubRegion) -> dict[str, float]:
    """By agent, the replicas for which there is no room, as the node exports them."""
    row = r'^\S*grix_missing_replicas\{[^}]*agent="([^"]+)"[^}]*\} (\S+)$'
    return {agent: float(value) for agent, value in re.findall(row, region.metrics(), re.MULTILINE)}


def test_it_tells_of_each_agent_for_how_many_replicas_there_is_no_room(region: StubRegion) -> None:
    deadline_s = time.monotonic() + 40.0
    while missing(region) != {"qwen-chat": 0.0, "qwen-doc": 0.0}:
        assert time.monotonic() < deadline_s, region.metrics()[-2000:]
        time.sleep(0.5)


def count(region: StubRegion, name: str, labels: str = "") -> float:
    """A counter, as the node exports it; 0 before the first time."""
    found = re.search(rf"^\S*{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", region.metrics(), re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def chats(region: StubRegion) -> set[int]:
    """Processes of the running replicas of qwen-chat."""
    apps = region.rest.details()["applications"]
    rows = [
        r for n, a in apps.items() if n.startswith("qwen-chat--") for r in a["deployments"]["QwenAgent"]["replicas"]
    ]
    return {r["pid"] for r in rows if r["state"] == "RUNNING"}


def eventually(region: StubRegion, holds: Callable[[], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, region.rest.status()
        time.sleep(0.2)


@contextmanager
def without_one(region: StubRegion) -> Iterator[list[str]]:
    """One of two replicas is killed, and people go on asking; the ids of their requests, all of them answered."""
    eventually(region, lambda: len(chats(region)) == 2, 30.0)
    victim = min(chats(region))
    os.kill(victim, signal.SIGKILL)
    eventually(region, lambda: victim not in chats(region), 20.0)
    asked, statuses, done = list[str](), set[int](), threading.Event()

    def asks() -> None:
        while not done.wait(0.05):
            request_id, reply = region.ask(model="qwen-chat")
            asked.append(request_id)
            statuses.add(reply.status)

    caller = threading.Thread(target=asks)
    caller.start()
    try:
        yield asked
    finally:
        done.set()
        caller.join()
    assert statuses == {200}


def called(region: StubRegion, asked: list[str]) -> dict[int, float]:
    """By process, when the first of some requests came to it."""
    lines = [line for request_id in asked for line in region.seen(request_id) if line["what"] == "called"]
    return {pid: min(line["unix_s"] for line in lines if line["pid"] == pid) for pid in {line["pid"] for line in lines}}


def warm_ups(region: StubRegion, since_unix_s: float) -> dict[int, list[float]]:
    """By process, when the calls of its warm-up came."""
    lines = [json.loads(line) for line in (region.folder / "warm-ups.jsonl").read_text().splitlines()]
    pids = {line["pid"] for line in lines if line["unix_s"] >= since_unix_s}
    return {pid: [line["unix_s"] for line in lines if line["pid"] == pid] for pid in pids}


def test_a_replica_that_stays_slow_is_replaced_and_told_and_no_request_comes_to_it(region: StubRegion) -> None:
    until(region, lambda s: healths(s) == {"healthy"})
    counter, began_unix_s = ("grix_failed_starts_total", 'reason="warm_up"'), time.time()
    told_ms = region.folder / "first-token-ms"
    told_ms.write_text("[1600]")
    try:
        with without_one(region) as asked:
            (serving,) = chats(region)
            snapshot = until(region, lambda s: "failed to start" in s["targets"][0]["why"], 60.0)
            said = re.fullmatch(
                r"a replica failed to start (?:once|\d+ times): not ready after 10 s, still warming up: "
                r"first tokens after \d{4} ms in the last of \d rounds, more than 1500 ms are slow, usual are \d+ ms",
                snapshot["targets"][0]["why"],
            )
            assert said is not None, snapshot["targets"][0]
            assert healths(snapshot) == {"healthy"}
            # Another one comes in its place, and it fares no better.
            eventually(region, lambda: len(warm_ups(region, began_unix_s)) >= 2, 40.0)
            assert chats(region) == {serving}
            told_ms.unlink()
            eventually(region, lambda: len(chats(region)) == 2, 40.0)
    finally:
        told_ms.unlink(missing_ok=True)
    failed = warm_ups(region, began_unix_s).keys() - chats(region)
    assert failed and not failed & called(region, asked).keys()
    until(region, lambda s: s["targets"][0]["why"] == "")
    eventually(region, lambda: count(region, *counter) >= 1.0, 30.0)


def test_a_replica_that_is_slow_at_first_gets_requests_only_when_it_is_warm(region: StubRegion) -> None:
    began_unix_s, told_ms = time.time(), region.folder / "first-token-ms"
    told_ms.write_text("[900, 700, 500, 0]")
    try:
        with without_one(region) as asked:
            eventually(region, lambda: len(chats(region)) == 2, 20.0)
            eventually(region, lambda: chats(region) <= called(region, asked).keys(), 20.0)
    finally:
        told_ms.unlink()
    ((pid, warmed),) = warm_ups(region, began_unix_s).items()
    # A round with what is slow at first, then three.
    assert len(warmed) == 12 and max(warmed) < called(region, asked)[pid]


def test_a_foreign_change_of_the_serve_config_is_put_back_and_counted(region: StubRegion) -> None:
    apps = region.rest.details()["applications"]
    (doc,) = [name for name in apps if name.startswith("qwen-doc--")]
    kept = [app["deployed_app_config"] for name, app in apps.items() if name != doc]
    region.rest.put_config({"applications": kept})
    deadline_s = time.monotonic() + 40.0
    while region.rest.details()["applications"].get(doc, {}).get("status") != "RUNNING":
        assert time.monotonic() < deadline_s, region.rest.status()
        time.sleep(0.2)
    # Only this one in all the time that the region runs: nothing of its own looks foreign to the writer.
    while count(region, "grix_config_put_back_total") != 1.0:
        assert time.monotonic() < deadline_s, region.metrics()[-2000:]
        time.sleep(0.5)


def test_even_who_removes_everything_has_it_put_back(region: StubRegion) -> None:
    before = {app.name for app in region.rest.status()}
    region.rest.put_config({"applications": []})
    deadline_s = time.monotonic() + 90.0
    while {app.name for app in region.rest.status() if app.status == "RUNNING"} != before:
        assert time.monotonic() < deadline_s, region.rest.status()
        time.sleep(0.2)
    until(region, lambda s: healths(s) == {"healthy"}, 60.0)


def test_a_killed_region_agent_costs_no_request_and_its_successor_is_heard(region: StubRegion) -> None:
    before = until(region, lambda s: s["targets"][0]["health"] == "healthy")
    details = region.rest.details()["applications"]["grix-region"]["deployments"]["RegionAgent"]
    (pid,) = [replica["pid"] for replica in details["replicas"]]
    os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 60.0
    while True:
        _, reply = region.ask()
        assert reply.status == 200, reply.raw
        snapshot = region.fleet()
        if snapshot["epoch"] > before["epoch"] and snapshot["targets"][0]["health"] == "healthy":
            break
        assert time.monotonic() < deadline_s, snapshot
        time.sleep(0.2)
