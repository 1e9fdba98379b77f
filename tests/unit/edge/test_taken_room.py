"""What replicas take of a cluster, also those of which Serve says nothing any more."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.edge.serve_rest import AppStatus, DeploymentStatus, ReplicaStatus
from serve_app.edge.taken_room import TakenRoom, ending_of, free_of, needs_of

CHAT, GRIX = "chat--1", "grix"
ALL = {"CPU": 8.0, "GPU": 4.0}


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


def app(name: str, gpus: float) -> dict[str, Any]:
    return {"name": name, "deployments": [{"name": "D", "ray_actor_options": {"num_cpus": 1, "num_gpus": gpus}}]}


def told(name: str, status: str = "RUNNING", **replicas: str) -> AppStatus:
    """An application whose replicas are in these states; with a ``?`` they have no node."""
    each = tuple(ReplicaStatus(i, state.rstrip("?"), not state.endswith("?")) for i, state in replicas.items())
    return AppStatus(name, status, "", (DeploymentStatus("D", "HEALTHY", "", None, each),) if each else ())


def looked(room: TakenRoom, gpus: float, *states: AppStatus) -> tuple[dict[str, float], dict[str, float]]:
    """What is free, and what ends."""
    apps = {CHAT: app(CHAT, gpus), GRIX: app(GRIX, 0)}
    held = room.looked(apps, {state.name: state for state in states})
    return free_of(ALL, held), ending_of(held)


def test_who_has_a_node_takes_it_and_who_ends_gives_it_back() -> None:
    room = TakenRoom()
    states = told(CHAT, a="RUNNING", b="STARTING", c="STARTING?", d="STOPPING", e="STOPPING?"), told(GRIX, r="STOPPING")
    # What a Router gives back the next one takes.
    assert looked(room, 1.0, *states) == ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0})


def test_what_is_deleted_ends_until_it_is_gone_though_serve_tells_no_replica_of_it() -> None:
    room = TakenRoom()
    assert looked(room, 1.0, told(CHAT, a="RUNNING", b="STARTING?"))[0] == {"CPU": 7.0, "GPU": 3.0}
    for _ in range(2):
        deleted = looked(room, 1.0, told(CHAT, "DELETING"))
        assert deleted == ({"CPU": 7.0, "GPU": 3.0}, {"CPU": 1.0, "GPU": 1.0})
    assert looked(room, 1.0) == (ALL, {})


def test_what_is_built_anew_stays_as_it_was_until_serve_tells_of_it_again() -> None:
    room = TakenRoom()
    looked(room, 1.0, told(CHAT, a="RUNNING"))
    assert looked(room, 2.0, told(CHAT, "DEPLOYING")) == ({"CPU": 7.0, "GPU": 3.0}, {})
    # The old one takes what it was started with, the new one what it is started with.
    both = looked(room, 2.0, told(CHAT, "DEPLOYING", a="STOPPING", b="STARTING"))
    assert both == ({"CPU": 6.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0})
    assert looked(room, 2.0, told(CHAT, b="RUNNING")) == ({"CPU": 7.0, "GPU": 2.0}, {})
