"""App grix-region on a real Ray cluster: a Router learns of its own targets from their replicas' reports, over handles.

The coordinator is away all the time: nothing here may need it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.stub_region import StubRegion, running_stub_region

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def region() -> Iterator[StubRegion]:
    with running_stub_region(federated=True) as made:
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


def put_back_count(region: StubRegion) -> float:
    """The metric, as the node exports it; 0 before the first time."""
    found = re.search(r"^\S*grix_config_put_back_total\{[^}]*\} (\S+)$", region.metrics(), re.MULTILINE)
    return 0.0 if found is None else float(found[1])


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
    while put_back_count(region) != 1.0:
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
