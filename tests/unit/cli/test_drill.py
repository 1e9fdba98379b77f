"""A drill's run: what it does to the world and puts back, whatever happens meanwhile; its JSON and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli import control, drill, regions
from serve_app.cli.client import Client
from serve_app.cli.drill_scene import Scene
from serve_app.cli.drill_stream import CALM_RATE_RPS, RATE_RPS
from serve_app.cli.say import BAD_USAGE, FAILED, OK, Failed, Progress
from serve_app.cli.state import CONTROL, Home
from serve_app.cli.up import alone
from serve_app.core.drill_verdict import Asked, Ending
from tests.unit.cli.drill_world import FakeFault, FakeStream, FakeWatch, HalfMade, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = FakeStream.world = FakeWatch.world = FakeFault.world = World()
    monkeypatch.setattr(drill, "time", made)
    monkeypatch.setattr(drill, "Stream", FakeStream)
    monkeypatch.setattr(drill, "Watch", FakeWatch)
    monkeypatch.setattr(drill, "FAULTS", {"kill-region": FakeFault, "partition": HalfMade})
    monkeypatch.setattr(drill, "agent_of", lambda entry: "qwen-chat")
    monkeypatch.setattr(drill, "records_of", lambda *_: {})
    monkeypatch.setattr(control, "wait_until_ready", lambda names, *_: made.did.append(f"plan has {names}"))
    monkeypatch.setattr(regions, "is_alive", lambda record: "dead" not in record)
    monkeypatch.setattr(regions, "client", lambda record: Client(record["url"], "key"))
    monkeypatch.setattr(regions, "deep_health", lambda record: (True, ""))
    return made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / ".grix")
    home.remember({"name": CONTROL, "pids": []})
    for name in ("a", "b"):
        home.remember({"name": name, "url": f"http://{name}", "pids": []})
    return home


def scene(home: Home) -> Scene:
    return Scene(home, "a", Progress(lambda _: None))


WELL = {
    "detected_s": 1.9,
    "detector": "peer",
    "failover_s": 0.0,
    "recovered_s": 19.9,
    "requests": 76,
    "lost_entry": 0,
    "failed_before_first_byte": 0,
    "failed_mid_stream": 0,
    "hung": 0,
}


def test_a_kept_promise_is_status_0_and_the_json_has_every_number(
    world: World, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    assert drill.run("kill-region", None, 1, home, as_json=True) == OK
    said, beside = capfd.readouterr()
    assert json.loads(said) == {
        "drill": "kill-region",
        "region": "a",
        "runs": [WELL],
        "failover_s": {"p50": 0.0, "p95": 0.0, "max": 0.0},
    }
    assert "BROKEN PROMISE" not in beside
    assert world.did == [
        "plan has ['a', 'b']",
        "watch a/qwen-chat from b",
        "stream to ['a', 'b']",
        *("prepare", "strike", "restore", "watch ends"),
        f"stream ends at {RATE_RPS:g}/s, gone []",
    ]


def test_people_get_a_table_of_the_same(world: World, home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    assert drill.run("kill-region", "a", 1, home, as_json=False) == OK
    lines = capfd.readouterr().out.splitlines()
    assert [lines[0], lines[-1]] == ["drill kill-region of a", "failover s: p50 0.0, p95 0.0, max 0.0"]
    assert lines[1].split("  ")[0] == "run" and lines[3].split() == ["1", *(str(value) for value in WELL.values())]


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("refused", "12 requests failed without a first byte, promised none: it was refused"),
        ("cut", "12 streams ended without an error in them"),
        ("hung", "12 requests hung"),
    ],
)
def test_a_broken_promise_is_status_1_and_told_beside_the_json(
    ending: Ending, told: str, world: World, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    world.ending = ending
    assert drill.run("kill-region", "a", 1, home, as_json=True) == FAILED
    said, beside = capfd.readouterr()
    (run,) = json.loads(said)["runs"]
    assert sum(run[name] for name in ("failed_before_first_byte", "failed_mid_stream", "hung")) == 12
    assert f"BROKEN PROMISE run 1: {told}" in beside
    assert world.restored_s is not None


def test_a_region_that_does_not_come_back_is_waited_for_and_then_told(
    world: World, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    world.stays_away = True
    assert drill.run("kill-region", "a", 1, home, as_json=True) == FAILED
    assert "BROKEN PROMISE run 1: the region did not come back to its full share" in capfd.readouterr().err
    assert world.restored_s is not None
    assert world.now_s - world.restored_s == pytest.approx(drill.RECOVERY_LIMIT_S + drill.AFTERWARDS_S, abs=1.0)


def test_each_run_begins_in_a_world_that_is_well(world: World, home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    assert drill.run("kill-region", "b", 3, home, as_json=True) == OK
    told = json.loads(capfd.readouterr().out)
    assert (told["region"], len(told["runs"])) == ("b", 3)
    assert [what for what in world.did if what in ("strike", "restore") or what.startswith("plan")] == [
        "plan has ['a', 'b']",
        *("strike", "restore"),
    ] * 3


def interrupted(world: World) -> None:
    if world.is_faulty:
        raise KeyboardInterrupt


def lost(world: World) -> None:
    if world.restored_s is not None:
        raise Failed("the state is gone")


@pytest.mark.parametrize(("meanwhile", "error"), [(interrupted, KeyboardInterrupt), (lost, Failed)])
def test_who_is_interrupted_leaves_the_world_whole_and_the_folder_free(
    meanwhile: Callable[[World], None], error: type[BaseException], world: World, home: Home
) -> None:
    world.meanwhile = meanwhile
    with pytest.raises(error):
        drill.run("kill-region", "a", 1, home, as_json=True)
    assert world.did[-3:] == ["restore", "watch ends", f"stream ends at {RATE_RPS:g}/s, gone []"]
    assert not world.is_faulty
    with alone(home):
        pass


def test_a_fault_that_breaks_half_made_is_removed(world: World, home: Home) -> None:
    with pytest.raises(OSError, match="no such process"):
        drill.run_once("partition", scene(home))
    assert world.did[-5:-1] == ["prepare", "strike", "restore", "watch ends"]


def test_while_the_fault_is_removed_requests_come_slowly_and_its_entry_is_gone(
    world: World, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, seen = FakeStream([]), list[Any]()
    monkeypatch.setattr(FakeFault, "restore", lambda _: seen.append((stream.rate_rps, stream.gone)))
    times = drill._strike(FakeFault(scene(home)), stream, scene(home), restores=True)  # type: ignore[arg-type]
    assert seen == [(CALM_RATE_RPS, frozenset({"a"}))]
    assert (stream.rate_rps, stream.gone) == (RATE_RPS, frozenset())
    assert (times.restore_s - times.fault_s, times.back_s - times.restore_s) == (pytest.approx(6.0), 0.0)


def test_a_world_may_be_left_with_the_fault_in_it(world: World, home: Home) -> None:
    run, faults = drill.run_once("kill-region", scene(home), restores=False)
    assert (run.recovered_s, faults, world.is_faulty) == (None, [], True)
    assert "restore" not in world.did


def test_where_things_are_not_well_before_it_there_is_no_fault(world: World, home: Home) -> None:
    world.asked.append(Asked("b", 1000.0, 1000.1, "refused", told="503 no_target"))
    with pytest.raises(Failed, match="a: 1 requests failed before the fault: 503 no_target"):
        drill.run("kill-region", "a", 1, home, as_json=True)
    assert "strike" not in world.did and world.did[-2:] == [
        "watch ends",
        f"stream ends at {RATE_RPS:g}/s, gone []",
    ]


def test_a_drill_needs_a_coordinator_and_two_regions_and_one_that_is_up(world: World, home: Home) -> None:
    with pytest.raises(Failed, match="--region c: is not up; allowed: a, b") as refused:
        drill.run("kill-region", "c", 1, home, as_json=True)
    assert refused.value.code == BAD_USAGE
    home.remember({"name": "b", "url": "http://b", "dead": True})
    with pytest.raises(Failed, match="a drill needs a coordinator and at least two regions that are up"):
        drill.run("kill-region", "a", 1, home, as_json=True)
    assert world.did == []
