"""What the scaling policy is told of an AgentPolicy's triggers and steps."""

from __future__ import annotations

from typing import Any

import pytest

from autoscale.queue_latency import ScaleParameters
from cluster_configs.scale_trigger import QUIET_S, ScaleTrigger, Scaling, default_triggers, quiet_s, settings


def up(metric: str, above: float) -> ScaleTrigger:
    return ScaleTrigger.model_validate({"metric": metric, "above": above, "action": "scale_up"})


def down(metric: str, below: float, **more: Any) -> ScaleTrigger:
    return ScaleTrigger.model_validate({"metric": metric, "below": below, "action": "scale_down", **more})


def test_the_default_triggers_and_steps_are_the_policys_own_defaults() -> None:
    told = settings(default_triggers(250), Scaling(), 16)
    assert ScaleParameters(min_replicas=1, max_replicas=4, **told) == ScaleParameters(  # type: ignore[arg-type]
        min_replicas=1, max_replicas=4, slots_per_replica=16
    )


def test_a_trigger_that_is_not_written_is_not_told() -> None:
    assert settings((), Scaling(), 4) == {
        "slots_per_replica": 4.0,
        "headroom_ratio": 0.0,
        "step_up_ratio": 2.0,
        "step_down_ratio": 0.0,
    }


def test_any_way_up_is_enough_and_every_way_down_has_to_agree() -> None:
    triggers = (up("queue_ms", 500), up("queue_ms", 300), down("queue_ms", 80), down("queue_ms", 60))
    told = settings((*triggers, up("kv_cache_used", 0.9), down("kv_cache_used", 0.4)), Scaling(headroom=0.5), 4)
    names = ("queue_above_ms", "queue_below_ms", "kv_above_ratio", "kv_below_ratio", "headroom_ratio")
    assert [told[name] for name in names] == [300.0, 60.0, 0.9, 0.4, 0.5]


def test_the_quiet_period_is_the_longest_cooldown() -> None:
    triggers = (up("queue_ms", 250), down("queue_ms", 50, cooldown="5m"), down("kv_cache_used", 0.4, cooldown="20m"))
    assert quiet_s(triggers) == 1200.0
    assert quiet_s(triggers[:1]) == quiet_s(()) == QUIET_S == 1800.0


@pytest.mark.parametrize("cooldown", ["10s", "12h"])
def test_a_cooldown_may_be_short_or_long(cooldown: str) -> None:
    assert down("queue_ms", 50, cooldown=cooldown).cooldown_s in (10.0, 43_200.0)
