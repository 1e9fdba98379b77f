"""What autoscalers are known to do wrong, played from beginning to end with Serve's own factors and delays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import validate
from tests.unit.autoscale.world import SETTINGS, World, every, in_world_time

AGENT = """\
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-chat}
spec:
  version: "1"
  duty: chat
  model: m
  storage: {modelPath: smollm2}
  gpu: {vramRequired: 40Gi}
"""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**options: Any) -> World:
        made = World(**options)
        in_world_time(monkeypatch, made)
        return made

    return make


def faults(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "agent.yaml"
    file.write_text(AGENT + text)
    return [str(fault) for fault in validate([file], {})]


def test_flapping_new_replicas_do_not_make_the_old_queue_look_short(world: Any) -> None:
    one = world(cooldown_s=30.0)
    one.run(180.0, every(0.2, 180.0))
    assert one.directions == 1 and 2 <= one.target <= 3, one.history
    one.run(120.0)
    assert one.directions == 2 and one.target == 1, one.history
    assert (one.done, one.left) == (one.arrived, 0) and not one.draining


def test_flapping_a_busy_victim_ends_its_calls_and_nobody_loses_an_answer(world: Any) -> None:
    one = world(cooldown_s=30.0, service_s=12.0)
    one.run(120.0, every(1.0, 120.0))
    # Long calls that seldom come: quiet enough to take replicas away, and the newest has some of them.
    one.run(240.0, every(6.0, 240.0))
    assert max(one.victims) > 0, one.history
    one.run(30.0)
    assert (one.done, one.left) == (one.arrived, 0) and not one.draining


def test_flapping_a_load_on_the_edge_keeps_its_replicas(world: Any) -> None:
    one = world(cooldown_s=30.0)
    # Four a second fill one replica to the last slot: it needs a second one now and then, and keeps it.
    one.run(600.0, every(0.25, 600.0))
    assert one.directions <= 1, one.history


def test_acting_twice_on_the_same_data_is_refused(tmp_path: Path) -> None:
    triggers = (
        "  maxReplicas: 4\n  scaleTriggers:\n    - {metric: queue_ms, above: 250, action: scale_up}\n"
        "    - {metric: queue_ms, below: 50, action: scale_down, cooldown: 5s}\n"
    )
    (fault,) = faults(tmp_path, triggers)
    assert "scaleTriggers[1].cooldown: 5s is shorter than the 10s" in fault


def test_acting_twice_on_the_same_data_a_step_is_at_most_two_actions(world: Any) -> None:
    one = world(cooldown_s=60.0, start_s=10.0)
    one.run(20.0, every(0.5, 20.0))
    one.run(300.0, every(0.15, 300.0))
    assert 1 <= len(one.history) <= 2, one.history


def test_replicas_that_never_go_away_are_gone_within_the_cooldown_and_it_shows(world: Any) -> None:
    one = world(cooldown_s=60.0)
    one.run(120.0, every(0.15, 120.0))
    assert one.target > 1
    one.run(40.0)
    # Ten seconds of the window have to pass before all is quiet.
    assert 25.0 <= one.stage.meter.values["grix_scale_quiet_s", ""] <= 40.0
    one.run(40.0)
    assert one.target == 1


@pytest.mark.parametrize("cooldown_s", [30.0, 300.0])
def test_delays_that_add_up_after_one_burst_there_is_the_cooldown_and_nothing_else(
    cooldown_s: float, world: Any
) -> None:
    one = world(cooldown_s=cooldown_s)
    one.run(20.0)
    burst_s = one.stage.now_s
    one.run(cooldown_s + 60.0, every(0.05, 10.0))
    assert one.directions == 2 and one.target == 1, one.history
    # The burst, its queue, the window of 10 s; then the cooldown, and a look each half second.
    (last_s, _) = one.history[-1]
    assert cooldown_s <= last_s - burst_s <= cooldown_s + 45.0, one.history


def test_scale_to_zero_never_under_traffic(world: Any) -> None:
    one = world(low=0, cooldown_s=30.0)
    one.run(300.0, every(0.5, 300.0))
    assert one.history == [] and one.done >= 598


def test_scale_to_zero_and_any_request_wakes_and_is_answered(world: Any) -> None:
    one = world(low=0, cooldown_s=30.0, start_s=20.0)
    one.run(20.0, every(0.5, 10.0))
    one.run(60.0)
    assert one.target == 0 and not one.replicas
    one.run(40.0, [3.0])
    assert one.target == 1 and (one.done, one.left) == (21, 0)
    woken_s, _ = one.history[-1]
    assert woken_s <= one.stage.now_s - 40.0 + 3.0 + 0.5


def test_a_minimum_of_zero_alone_can_still_scale_up(tmp_path: Path, world: Any) -> None:
    from cluster_configs.kind_agent import AgentSpec

    assert faults(tmp_path, "  minReplicas: 0\n") == []
    spec = AgentSpec.model_validate(
        {"version": "1", "duty": "chat", "model": "m", "storage": {"modelPath": "smollm2"}, "minReplicas": 0}
        | {"engine": {"kvCacheMemory": "1Gi"}}
    )
    assert (spec.min_replicas, spec.max_replicas) == (0, 1)
    one = world(low=0, high=spec.max_replicas, cooldown_s=30.0)
    one.run(60.0)
    assert one.target == 0
    one.run(30.0, [1.0])
    assert one.done == 1


def test_ghosts_of_callers_who_left_add_nothing(world: Any) -> None:
    one = world(service_s=60.0, settings={**SETTINGS, "queue_above_ms": 2000.0})
    one.run(10.0, [0.0] * 4)
    # A hundred wait behind a replica that is busy for a minute, and all leave before it counts.
    one.run(30.0, [0.0] * 100, patience_s=1.0)
    assert one.history == [] and one.left == 100
    assert not one.queue and one.stage.queued == 0.0
    (told,) = [reports[-1][1] for reports in one.stage.told.values()]
    assert (told["oldest_wait_ms"], told["ongoing_requests"]) == (0.0, 4.0)


def test_a_stuck_queue_is_seen_although_nothing_completes(world: Any) -> None:
    one = world(service_s=1e6, high=3, start_s=5.0)
    one.run(30.0, [1.0] * 40)
    assert one.target == 3


def test_headroom_adds_before_anybody_waits(world: Any) -> None:
    one = world(settings={**SETTINGS, "headroom_ratio": 0.5}, service_s=10.0)
    one.run(60.0, every(3.4, 60.0))
    # Three of four slots are taken: nobody waits, but less than half of it is free.
    assert one.target == 2 and one.left == 0
