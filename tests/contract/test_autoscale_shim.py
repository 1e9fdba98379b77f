"""The shim of the autoscaling benchmark decides what Serve's own state does, when Serve's clock says the same time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import autoscaling_policy
from ray.serve._private import autoscaling_state, deployment_scheduler
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import ReplicaConfig
from ray.serve._private.deployment_scheduler import (
    DeploymentDownscaleRequest,
    DeploymentScheduler,
    SpreadDeploymentSchedulingPolicy,
)
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from benchmarks.autoscale_shim import NOBODY, ServeScaler

CONFIGS = {
    "shipped": {"upscale_delay_s": 0, "downscale_delay_s": 60},
    "both delays": {"upscale_delay_s": 10, "downscale_delay_s": 45},
    "factors": {"upscale_delay_s": 3, "downscale_delay_s": 30, "upscaling_factor": 0.5, "downscaling_factor": 0.3},
    "to zero": {"upscale_delay_s": 0, "downscale_delay_s": 20, "downscale_to_zero_delay_s": 50, "min_replicas": 0},
    "a bound above one": {"upscale_delay_s": 0, "downscale_delay_s": 0, "min_replicas": 3},
}


class Clock:
    """Serve's ``time`` module."""

    def __init__(self) -> None:
        # Large, as it is: differences of large times are where floats fail.
        self.now_s = 1.8e9

    def time(self) -> float:
        return self.now_s


class Wishes:
    """A policy that wants what it is told, with a state of its own."""

    def __init__(self) -> None:
        self.wish = 1.0

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        return self.wish, {"calls": context.policy_state.get("calls", 0) + 1}


class Nothing:
    """Stands in for metrics and usage, which need a cluster."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def set(self, *_: Any, **__: Any) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (autoscaling_policy, autoscaling_state):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(autoscaling_state.metrics, "Gauge", Nothing)
    monkeypatch.setattr(
        autoscaling_state.ServeUsageTag.CUSTOM_AUTOSCALING_POLICY_USED, "record", Nothing, raising=False
    )
    return clock


def serve_state(
    config: AutoscalingConfig, policy: Wishes, monkeypatch: pytest.MonkeyPatch
) -> DeploymentAutoscalingState:
    monkeypatch.setattr(autoscaling_state, "_resolve_policy_callable", lambda _: policy)
    state = DeploymentAutoscalingState(NOBODY)
    deployed = SimpleNamespace(autoscaling_config=config, gang_scheduling_config=None)
    info: Any = SimpleNamespace(
        deployment_config=deployed, target_capacity=None, target_capacity_direction=None, config_changed=lambda _: False
    )
    state.register(info, 1)
    return state


@pytest.mark.parametrize("name", CONFIGS)
def test_it_decides_what_serve_decides(name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AutoscalingConfig(**{"min_replicas": 1, "max_replicas": 6, **CONFIGS[name]})
    chance = random.Random(name)
    mine, theirs = Wishes(), Wishes()
    scaler, state = ServeScaler(mine, config), serve_state(config, theirs, monkeypatch)
    begun_s, target, running, seen = clock.now_s, 1, 1, set()
    for _ in range(3000):
        clock.now_s += chance.choice((0.1, 1.0, 1.0, 7.0))
        if chance.random() < 0.05:
            mine.wish = theirs.wish = chance.choice((0, 1, 2, 2.4, 3, 5, 9))
        if chance.random() < 0.3:
            running = target
        ongoing = float(chance.choice((0, 0, 4)))
        monkeypatch.setattr(state, "get_total_num_requests", lambda ongoing=ongoing: ongoing)
        state.update_running_replica_ids([SimpleNamespace(to_full_id_str=lambda i=i: str(i)) for i in range(running)])
        wanted = state.get_decision_num_replicas(target)
        assert scaler.step(clock.now_s - begun_s, running, target, ongoing, 0.0) == wanted
        seen.add(wanted)
        target = wanted
    assert len(seen) >= 3


def test_a_policy_is_told_what_serve_tells(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[AutoscalingContext] = []

    class Listens(Wishes):
        def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
            told.append(context)
            return super().__call__(context)

    config = AutoscalingConfig(min_replicas=1, max_replicas=6)
    state = serve_state(config, Listens(), monkeypatch)
    state.get_decision_num_replicas(2)
    ServeScaler(Listens(), config).step(clock.now_s, 0, 2, 0.0, 0.0)
    theirs, ours = (vars(context) for context in told)
    assert theirs.keys() == ours.keys()
    for name in ("current_num_replicas", "target_num_replicas", "current_time", "config", "policy_state"):
        assert theirs[name] == ours[name], name
    for name in ("total_num_requests", "total_queued_requests", "raw_metrics", "total_running_requests"):
        assert getattr(told[0], name) == getattr(told[1], name), name


def test_on_one_node_serve_stops_the_newest_of_the_replicas_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the benchmark's world and the stories' world do when there are too many."""
    monkeypatch.setattr(deployment_scheduler.ray_metrics, "Counter", Nothing)
    nodes: Any = SimpleNamespace(get_node_labels=lambda node: {})
    scheduler = DeploymentScheduler(nodes, "head", create_placement_group_fn=Nothing)
    agent = DeploymentID("QwenAgent", "qwen-chat--01234567")
    scheduler.on_deployment_created(agent, SpreadDeploymentSchedulingPolicy())
    scheduler.on_deployment_deployed(agent, ReplicaConfig.create(Nothing))
    replicas = [ReplicaID(name, agent) for name in ("oldest", "older", "newer", "newest")]
    for replica in replicas:
        scheduler.on_replica_running(replica, "head")
    for count in (1, 2, 3):
        stopped = scheduler.schedule({}, {agent: DeploymentDownscaleRequest(agent, count)})[agent]
        assert stopped == set(replicas[-count:])
