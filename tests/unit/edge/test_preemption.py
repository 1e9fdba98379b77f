"""Room for the more important agent through the region's Serve config: put, kept over a restart, and given back."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.preempt import PENDING_S, RESTORE_S, Ceiling, Change, Decision
from serve_app.core.vain_starts import FAILED_STARTS
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.preemption import Preemption
from serve_app.edge.serve_rest import ServeRestError
from tests.unit.edge.test_desired_config import TOP, FakeServe

CHAT, DOC = "chat--11111111", "doc--22222222"


def engine(name: str, priority: int | None, low: int = 1, most: int = 4, slots: int = 1) -> dict[str, Any]:
    deployment = {
        "name": "QwenAgent",
        "autoscaling_config": {"min_replicas": low, "max_replicas": most, "upscale_delay_s": 0},
        "user_config": {"scaling": {}} if priority is None else {"priority": priority},
        "ray_actor_options": {"num_cpus": 0.1, "resources": {"gpu_slot": slots}},
    }
    return {"name": name, "deployments": [deployment]}


@dataclass
class Cluster(FakeServe):
    """With replicas by application: those that have a node, those that end, those without a node.

    Of an application that is ``deleted`` it tells none.
    """

    replicas: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    #: Replicas with a node that do not serve yet.
    starts: set[str] = field(default_factory=set)

    def details(self) -> dict[str, Any]:
        told = super().details()
        for name, (placed, leaving, pending) in self.replicas.items():
            states = ["RUNNING"] * placed + ["STOPPING"] * leaving + ["STARTING"] * pending
            rows: list[dict[str, Any]] = [
                {"replica_id": f"{name}#{i}", "state": state, "node_id": None if state == "STARTING" else "n"}
                for i, state in enumerate(states)
            ]
            rows = [{**row, "state": "STARTING"} if row["replica_id"] in self.starts else row for row in rows]
            told["applications"][name]["deployments"] = {"QwenAgent": {"status": "HEALTHY", "replicas": rows}}
        told["applications"] |= {name: {"status": "DELETING", "deployments": {}} for name in self.deleted}
        return told

    def most(self, name: str) -> int:
        (one,) = self.apps[name]["deployments"]
        return int(one["autoscaling_config"]["max_replicas"])


class Region:
    """A writer with its preemption over a cluster with three slots, of which ``chat`` would have two."""

    def __init__(self, folder: Path | None) -> None:
        self.cluster = Cluster({CHAT: engine(CHAT, 100), DOC: engine(DOC, 50)})
        self.cluster.replicas = {CHAT: (1, 0, 1), DOC: (2, 0, 0)}
        self.folder, self.now_s = folder, 100.0
        if folder is not None:
            folder.mkdir(exist_ok=True)
        self.resources: dict[str, float] = {"CPU": 4.0, "gpu_slot": 3.0}
        self.changes: list[Change | None] = []
        self.start()

    def start(self) -> None:
        """Anew, as after a restart."""
        self.writer = ConfigWriter(self.cluster, self.folder)  # type: ignore[arg-type]
        self.writer.begin()
        self.preemption = Preemption(
            self.writer,
            now_s=lambda: self.now_s,
            resources=lambda: self.ask(),
            on_decision=self.decided,
            resources_limit_s=0.05,
        )

    def ask(self) -> dict[str, float]:
        """What the cluster has."""
        return self.resources

    def decided(self, decision: Decision) -> None:
        self.changes.append(decision.change)

    async def look(self, after_s: float = 0.0) -> list[str]:
        """What was put back of a foreign change; then who gives way."""
        self.now_s += after_s
        foreign = self.writer.put_back(TOP)
        await self.preemption.look(TOP)
        return foreign

    async def preempted(self) -> None:
        await self.look()
        await self.look(PENDING_S)
        assert self.changes[-1] == Change(DOC, 2, 1, CHAT)


async def test_the_maximum_goes_down_in_serve_and_nowhere_else(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    assert (region.cluster.most(DOC), region.cluster.most(CHAT)) == (1, 4)
    assert len(region.cluster.puts) == 1
    kept = json.loads((tmp_path / "desired.json").read_text())
    assert kept["lowered"] == {DOC: [1, CHAT]}
    for apps in (kept["applications"], kept["fulfilled"]):
        assert apps[DOC]["deployments"][0]["autoscaling_config"]["max_replicas"] == 4
    assert region.preemption.told() == ["doc has at most 1 replica, for chat"]
    # What is in force by our own hand is no foreign change.
    region.cluster.replicas = {CHAT: (1, 0, 1), DOC: (1, 1, 0)}
    assert await region.look(1.0) == []
    assert region.preemption.is_urgent is False
    assert len(region.cluster.puts) == 1


async def test_a_foreign_maximum_is_put_back_to_the_lowered_one(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    region.cluster.apps[DOC]["deployments"][0]["autoscaling_config"]["max_replicas"] = 3
    assert await region.look(1.0) == [DOC]
    assert region.cluster.most(DOC) == 1


async def test_who_comes_after_a_restart_gives_it_back_five_minutes_later(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    region.cluster.replicas = {CHAT: (2, 0, 0), DOC: (1, 0, 0)}
    region.start()
    assert await region.look(60.0) == []
    assert region.preemption.told() == ["doc has at most 1 replica, for chat"]
    await region.look(RESTORE_S - 0.1)
    assert region.cluster.most(DOC) == 1
    await region.look(0.1)
    assert region.changes[-1] == Change(DOC, 1, 4, None)
    assert region.cluster.most(DOC) == 4
    assert await region.look(1.0) == [] and region.preemption.told() == []


async def test_a_put_that_failed_is_put_by_the_next_look_even_after_a_restart(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.look()
    region.now_s += PENDING_S
    region.cluster.away = True
    with pytest.raises(ServeRestError):
        await region.preemption.look(TOP)
    region.cluster.away = False
    region.start()
    assert await region.look() == []
    assert region.cluster.most(DOC) == 1 and len(region.cluster.puts) == 1


@pytest.mark.parametrize(("low", "most", "in_force"), [(1, 8, 1), (2, 8, 2), (1, 1, 1)])
async def test_other_documents_keep_it_as_far_as_their_bounds_allow(
    tmp_path: Path, low: int, most: int, in_force: int
) -> None:
    region = Region(tmp_path)
    await region.preempted()
    region.writer.put({CHAT: engine(CHAT, 100), DOC: engine(DOC, 50, low, most)}, TOP)
    assert region.cluster.most(DOC) == in_force
    assert await region.look(1.0) == []
    assert (region.cluster.most(DOC), await region.look(1.0)) == (in_force, [])


async def test_an_engine_that_leaves_takes_its_ceiling_along(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    del region.cluster.replicas[DOC]
    region.writer.put({CHAT: engine(CHAT, 100)}, TOP)
    assert await region.look(1.0) == []
    assert region.writer.desired is not None and region.writer.desired.lowered == {}


async def test_nobody_gives_way_where_nothing_is_known(tmp_path: Path) -> None:
    region = Region(None)
    for _ in range(4):
        await region.look(PENDING_S)
    assert region.changes == []
    region = Region(tmp_path)
    region.resources = {}
    for _ in range(4):
        await region.look(PENDING_S)
    assert region.changes == [] and region.cluster.puts == []


async def test_an_engine_of_an_older_version_has_no_importance_and_takes_its_room(tmp_path: Path) -> None:
    region = Region(tmp_path)
    old = engine(DOC, None)
    region.writer.put({CHAT: engine(CHAT, 100), DOC: old}, TOP)
    for _ in range(4):
        await region.look(PENDING_S)
    assert set(region.changes) == {None}
    assert region.preemption.told() == ["chat wants 1 more than there is room for"]


async def test_an_engine_that_starts_in_vain_holds_nobody_at_its_minimum(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    # It is given a node, fails, and waits beside what the failed one still takes, for ever.
    for i in range(FAILED_STARTS):
        region.cluster.replicas = {CHAT: (1, 1, 1), DOC: (1, 0, 0)}
        region.preemption.failed_start(CHAT, f"failed-{i}")
        await region.look(30.0)
    assert region.preemption.told() == [
        "doc has at most 1 replica, for chat",
        "chat starts in vain, nobody makes room for it",
    ]
    await region.look(RESTORE_S - 30.1)
    assert region.cluster.most(DOC) == 1
    await region.look(30.1)
    assert (region.changes[-1], region.cluster.most(DOC)) == (Change(DOC, 1, 4, None), 4)
    region.cluster.replicas = {CHAT: (1, 0, 1), DOC: (2, 0, 0)}
    for _ in range(200):
        await region.look(10.0)
    assert region.cluster.most(DOC) == 4
    # Once a replica of it has started, it is waited for again.
    region.cluster.replicas = {CHAT: (2, 0, 1), DOC: (1, 0, 0)}
    await region.look(1.0)
    region.cluster.replicas = {CHAT: (2, 0, 1), DOC: (1, 0, 0)}
    await region.look(PENDING_S)
    assert region.preemption.told() == ["chat wants 1 more than there is room for"]


async def test_a_start_that_never_ends_holds_nobody_either(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    region.cluster.replicas = {CHAT: (2, 0, 1), DOC: (1, 0, 0)}
    region.cluster.starts = {f"{CHAT}#1"}
    # Twice the 900 s of an engine that says no limit of its own.
    for _ in range(361):
        assert region.preemption.told()[0] == "doc has at most 1 replica, for chat"
        await region.look(5.0)
    assert region.preemption.told()[1:] == ["chat starts in vain, nobody makes room for it"]
    await region.look(RESTORE_S)
    assert region.cluster.most(DOC) == 4


async def test_who_serve_has_given_up_needs_no_room(tmp_path: Path) -> None:
    region = Region(tmp_path)
    region.cluster.broken = {CHAT: "failed to start 3 times"}
    for _ in range(4):
        await region.look(PENDING_S)
    assert set(region.changes) == {None} and region.cluster.puts == []
    region.cluster.broken = {}
    await region.preempted()


async def test_nobody_gives_way_to_a_new_engine_that_starts_beside_the_old_one(tmp_path: Path) -> None:
    region, new = Region(tmp_path), "chat--33333333"
    region.writer.put({CHAT: engine(CHAT, 100), new: engine(new, 100), DOC: engine(DOC, 50)}, TOP)
    region.cluster.replicas = {CHAT: (1, 0, 0), new: (0, 0, 1), DOC: (2, 0, 0)}
    for _ in range(4):
        await region.look(PENDING_S)
    assert set(region.changes) == {None}
    assert region.preemption.told() == ["chat wants 1 more than there is room for"]
    # The old one is deleted and ends its calls: its room comes.
    del region.cluster.replicas[CHAT]
    region.writer.put({new: engine(new, 100), DOC: engine(DOC, 50)}, TOP)
    region.cluster.deleted = {CHAT}
    for _ in range(4):
        await region.look(PENDING_S)
    assert (set(region.changes), region.preemption.told()) == ({None}, [])
    # It is gone, and another one takes the room.
    region.cluster.deleted = set()
    region.cluster.replicas[DOC] = (3, 0, 0)
    await region.look(1.0)
    await region.look(PENDING_S)
    assert region.changes[-1] == Change(DOC, 3, 2, new)


async def test_who_gave_way_is_held_until_what_is_deleted_is_gone(tmp_path: Path) -> None:
    region = Region(tmp_path)
    await region.preempted()
    # With the room of a third engine, which is deleted, all would have room.
    region.writer.put({CHAT: engine(CHAT, 100), DOC: engine(DOC, 50), "x--1": engine("x--1", 10)}, TOP)
    region.resources["gpu_slot"] = 4.0
    region.cluster.replicas = {CHAT: (1, 0, 1), DOC: (1, 0, 0), "x--1": (2, 0, 0)}
    await region.look(1.0)
    del region.cluster.replicas["x--1"]
    region.writer.put({CHAT: engine(CHAT, 100), DOC: engine(DOC, 50)}, TOP)
    region.cluster.deleted = {"x--1"}
    await region.look(RESTORE_S)
    assert region.cluster.most(DOC) == 1
    region.cluster.deleted = set()
    region.cluster.replicas[CHAT] = (2, 0, 0)
    await region.look(RESTORE_S)
    assert region.cluster.most(DOC) == 4


async def test_a_replica_of_the_version_before_takes_what_it_was_started_with(tmp_path: Path) -> None:
    region = Region(tmp_path)
    # Chat grows from one slot to two, replica by replica; one more would have room beside it.
    region.resources["gpu_slot"] = 5.0
    region.cluster.replicas = {CHAT: (2, 0, 0), DOC: (2, 0, 0)}
    await region.look()
    region.writer.put({CHAT: engine(CHAT, 100, slots=2), DOC: engine(DOC, 50)}, TOP)
    region.cluster.replicas = {CHAT: (1, 1, 1), DOC: (2, 0, 0)}
    for _ in range(4):
        await region.look(PENDING_S)
    assert (set(region.changes), region.preemption.told()) == ({None}, [])
    # The other way it is not taken for smaller than it is.
    region = Region(tmp_path / "other")
    region.writer.put({CHAT: engine(CHAT, 100, slots=2), DOC: engine(DOC, 50)}, TOP)
    region.resources["gpu_slot"] = 6.0
    region.cluster.replicas = {CHAT: (2, 0, 0), DOC: (2, 0, 0)}
    await region.look()
    region.writer.put({CHAT: engine(CHAT, 100), DOC: engine(DOC, 50)}, TOP)
    region.cluster.replicas = {CHAT: (2, 0, 1), DOC: (2, 0, 0)}
    await region.look()
    await region.look(PENDING_S)
    assert region.changes[-1] == Change(DOC, 2, 1, CHAT)


async def test_a_cluster_that_does_not_say_what_it_has_is_waited_for_once(tmp_path: Path) -> None:
    region, asked, answer = Region(tmp_path), list[int](), threading.Event()

    def ask() -> dict[str, float]:
        asked.append(1)
        answer.wait()
        return region.resources

    region.ask = ask  # type: ignore[method-assign]
    try:
        for _ in range(4):
            await region.look(PENDING_S)
        assert (region.changes, len(asked)) == ([], 1)
    finally:
        answer.set()
    async with asyncio.timeout(5):
        while not region.changes:
            await region.look()
            await asyncio.sleep(0.01)
    await region.look(PENDING_S)
    assert region.changes[-1] == Change(DOC, 2, 1, CHAT)


async def test_a_cluster_that_fails_to_say_what_it_has_stops_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    region = Region(tmp_path)

    def ask() -> dict[str, float]:
        raise ConnectionError("no GCS")

    region.ask = ask  # type: ignore[method-assign]
    await region.look()
    assert region.changes == []
    assert "nobody says what this cluster has: no GCS" in caplog.messages


async def test_an_agent_that_is_gone_is_short_of_nothing(tmp_path: Path) -> None:
    region = Region(tmp_path)
    region.cluster.replicas = {CHAT: (1, 0, 1), DOC: (1, 0, 0)}
    region.resources["gpu_slot"] = 2.0
    await region.look()
    await region.look(PENDING_S)
    assert region.preemption.told() == ["chat wants 1 more than there is room for"]
    del region.cluster.replicas[CHAT]
    region.writer.put({DOC: engine(DOC, 50)}, TOP)
    # Even where nothing is decided any more.
    region.resources = {}
    await region.look(1.0)
    assert region.preemption.told() == []


@pytest.mark.parametrize("text", ['{"chat": 1}', '{"chat": ["x", "y"]}', "[1]"])
def test_a_file_whose_ceilings_are_none_is_left_aside(tmp_path: Path, text: str) -> None:
    apps = json.dumps({CHAT: engine(CHAT, 1)})
    whole = f'{{"applications": {apps}, "fulfilled": {apps}, "revision": "", "confirmed": true, "lowered": {text}}}'
    (tmp_path / "desired.json").write_text(whole)
    made = ConfigWriter(Cluster({DOC: engine(DOC, 1)}), tmp_path)  # type: ignore[arg-type]
    made.begin()
    assert made.desired is not None and made.desired.applications.keys() == {DOC}


def test_a_ceiling_is_kept_as_it_is(tmp_path: Path) -> None:
    region = Region(tmp_path)
    assert region.writer.desired is not None
    region.writer.put(region.writer.desired.applications, TOP, lowered={DOC: Ceiling(2, CHAT)})
    region.start()
    assert region.writer.desired is not None and region.writer.desired.lowered == {DOC: Ceiling(2, CHAT)}
