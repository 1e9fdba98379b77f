"""Room for the more important agent through the region's Serve config: put, kept over a restart, and given back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.preempt import PENDING_S, RESTORE_S, Ceiling, Change, Decision
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.preemption import Preemption, needs_of
from serve_app.edge.serve_rest import ServeRestError
from tests.unit.edge.test_desired_config import TOP, FakeServe

CHAT, DOC = "chat--11111111", "doc--22222222"


def engine(name: str, priority: int | None, low: int = 1, most: int = 4) -> dict[str, Any]:
    deployment = {
        "name": "QwenAgent",
        "autoscaling_config": {"min_replicas": low, "max_replicas": most, "upscale_delay_s": 0},
        "user_config": {"scaling": {}} if priority is None else {"priority": priority},
        "ray_actor_options": {"num_cpus": 0.1, "resources": {"gpu_slot": 1}},
    }
    return {"name": name, "deployments": [deployment]}


@dataclass
class Cluster(FakeServe):
    """With replicas by application: those that have a node, those that end, those without a node."""

    replicas: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def details(self) -> dict[str, Any]:
        told = super().details()
        for name, (placed, leaving, pending) in self.replicas.items():
            rows = [{"state": "RUNNING", "node_id": "n"}] * placed + [{"state": "STOPPING", "node_id": "n"}] * leaving
            rows += [{"state": "STARTING", "node_id": None}] * pending
            told["applications"][name]["deployments"] = {"QwenAgent": {"status": "HEALTHY", "replicas": rows}}
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
        self.resources: dict[str, float] = {"CPU": 4.0, "gpu_slot": 3.0}
        self.changes: list[Change | None] = []
        self.start()

    def start(self) -> None:
        """Anew, as after a restart."""
        self.writer = ConfigWriter(self.cluster, self.folder)  # type: ignore[arg-type]
        self.writer.begin()
        self.preemption = Preemption(
            self.writer, now_s=lambda: self.now_s, resources=lambda: self.resources, on_decision=self.decided
        )

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


@pytest.mark.parametrize(
    ("deployment", "needs"),
    [
        ({}, {"CPU": 1.0}),
        ({"ray_actor_options": {"num_cpus": 0}}, {}),
        ({"ray_actor_options": {"num_cpus": 1, "num_gpus": 0.5}}, {"CPU": 1.0, "GPU": 0.5}),
        ({"ray_actor_options": {"num_cpus": 0.1, "resources": {"gpu_slot": 1}}}, {"CPU": 0.1, "gpu_slot": 1.0}),
        ({"placement_group_bundles": [{"CPU": 1, "GPU": 1}, {"GPU": 1}]}, {"CPU": 1.0, "GPU": 2.0}),
    ],
)
def test_what_a_replica_takes(deployment: dict[str, Any], needs: dict[str, float]) -> None:
    assert needs_of(deployment) == needs


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
    region.writer.lower({DOC: Ceiling(2, CHAT)}, TOP)
    region.start()
    assert region.writer.desired is not None and region.writer.desired.lowered == {DOC: Ceiling(2, CHAT)}
