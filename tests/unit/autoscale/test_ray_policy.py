"""What Serve says, as a load; what replicas say, as settings; and that nothing of it can raise."""

from __future__ import annotations

import inspect
import logging
import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig

from autoscale.ray_policy import TELL_S, QueueLatencyPolicy
from serve_app.metrics import SCALING
from tests.unit.autoscale.stage import QUIET, SETTINGS, UNIX_S, FakeMeter, Stage


def test_waits_of_replicas_become_a_decision_with_its_reason() -> None:
    stage = Stage()
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0})
    stage.says("r1", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    assert stage.decided() == (3, "queue_wait")


def test_settings_of_replicas_count_as_soon_as_they_come() -> None:
    stage = Stage(target=1)
    waiting = {**QUIET, "ongoing_requests": 16.0, "started_rps": 1.0, "oldest_wait_ms": 400.0}
    stage.says("r0", waiting, {**SETTINGS, "queue_above_ms": 500.0})
    assert stage.decided() == (1, "steady")
    stage.passes(1.0)
    stage.says("r0", waiting)
    assert stage.decided() == (2, "queue_wait")


def test_a_wait_that_is_no_trigger_any_more_is_told_as_0() -> None:
    stage = Stage()
    stage.says("r0", QUIET)
    stage.decided()
    assert stage.meter.values["grix_scale_above_ms", ""] == 250.0
    stage.passes(TELL_S)
    stage.says("r0", QUIET, {"slots_per_replica": 16.0, "kv_above_ratio": 0.85})
    stage.decided()
    assert stage.meter.values["grix_scale_above_ms", ""] == 0.0


def test_of_two_settings_the_newest_report_counts() -> None:
    stage = Stage()
    waiting = {**QUIET, "ongoing_requests": 16.0, "started_rps": 1.0, "oldest_wait_ms": 400.0}
    stage.says("r0", waiting)
    stage.decided()
    stage.passes(1.0)
    stage.says("r1", waiting, {**SETTINGS, "queue_above_ms": 500.0})
    assert stage.decided() == (2, "steady")


def test_before_any_setting_nothing_is_triggered() -> None:
    stage = Stage()
    stage.says("r0", {**QUIET, "oldest_wait_ms": 9000.0}, {})
    stage.says("r1", QUIET, {})
    assert stage.decided() == (2, "steady")


@pytest.mark.parametrize(
    "bad", [{"queue_above_ms": math.nan}, {"slots_per_replica": math.inf}, {"queue_below_ms": 300.0}]
)
def test_settings_that_cannot_be_leave_the_last_ones(bad: dict[str, float]) -> None:
    stage = Stage(target=1)
    stage.says("r0", QUIET)
    stage.decided()
    stage.passes(1.0)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0}, {**SETTINGS, **bad})
    assert stage.decided() == (2, "queue_wait")


def test_a_value_that_the_last_report_does_not_have_is_gone() -> None:
    stage = Stage(target=1)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "started_rps": 1.0, "queue_wait_p95_ms": 900.0})
    stage.passes(1.0)
    stage.says("r0", {**QUIET, "ongoing_requests": 1.0, "started_rps": 1.0})
    assert stage.decided() == (1, "steady")


def test_what_came_long_ago_by_the_clock_of_here_is_no_data() -> None:
    stage = Stage(target=1)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    assert stage.decided() == (2, "queue_wait")
    stage.passes(5.1)
    assert stage.decided() == (1, "no_data")


def test_an_hour_old_report_is_no_data_until_the_next_one_comes() -> None:
    stage = Stage(target=1)
    stage.says("r0", {**QUIET, "oldest_wait_ms": 9000.0, "ongoing_requests": 16.0})
    stage.passes(3600.0)
    assert stage.decided() == (1, "no_data")
    stage.passes(1.0)
    stage.says("r0", {**QUIET, "started_rps": 1.0})
    assert stage.decided() == (1, "steady")


@pytest.mark.parametrize("skew_s", [-7200.0, -30.0, 30.0, 7200.0])
def test_a_replica_whose_clock_is_wrong_is_heard_from_its_second_report_on(skew_s: float) -> None:
    stage = Stage(target=1)
    for _ in range(2):
        stage.unix_s += skew_s
        stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
        stage.unix_s -= skew_s
        last = stage.decided()
        stage.passes(1.0)
    assert last == (2, "queue_wait")


def test_one_replica_without_metrics_keeps_all_and_does_not_stop_the_way_up() -> None:
    stage = Stage()
    stage.says("r0", QUIET)
    assert stage.decided() == (2, "no_data")
    stage.passes(1.0)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    assert stage.decided() == (3, "queue_wait")


def wrapped(stage: Stage) -> Any:
    """The policy as Serve runs it, with its delays."""
    config = AutoscalingConfig(
        min_replicas=1, max_replicas=8, target_ongoing_requests=16, upscale_delay_s=0, downscale_delay_s=60.0
    )
    policy, state = _apply_autoscaling_config(stage.policy), {}

    def step() -> int:
        nonlocal state
        context = stage.context()
        context.config, context.policy_state = config, state
        replicas, state = policy(context)
        stage.target = stage.running = max(1, min(8, int(replicas)))
        return stage.target

    return step


def test_quiet_is_visible_and_ends_after_the_delay_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr("ray.serve.autoscaling_policy.time", SimpleNamespace(time=lambda: stage.unix_s))
    step = wrapped(stage)
    for _ in range(60):
        stage.all_quiet()
        assert step() == 2
        stage.passes(1.0)
    assert 54.0 <= stage.meter.values["grix_scale_quiet_s", ""] <= 59.0
    stage.all_quiet()
    assert step() == 1


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_step_starts_the_quiet_period_again(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr("ray.serve.autoscaling_policy.time", SimpleNamespace(time=lambda: stage.unix_s))
    step, seen = wrapped(stage), []
    for second in range(120):
        if second == 30:
            stage.unix_s += step_s
        stage.all_quiet()
        seen.append(step())
        stage.passes(1.0)
    # 60 s after the step, with a second or two for fresh reports.
    assert 90 <= seen.index(1) <= 93


def test_a_clock_step_does_not_stop_the_way_up() -> None:
    stage = Stage(target=1)
    stage.says("r0", QUIET)
    stage.decided()
    stage.passes(1.0)
    stage.unix_s += 3600.0
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    assert stage.decided() == (2, "queue_wait")


def test_zero_replicas_with_a_request_waiting() -> None:
    stage = Stage(target=0, low=0)
    assert stage.decided() == (0, "asleep")
    stage.queued = 1.0
    assert stage.decided() == (1, "wake")


@pytest.mark.parametrize(
    "changes",
    [
        {"running": None},
        {"target": "two"},
        {"ongoing": "many"},
        {"unix_s": None},
        {"high": math.nan},
        {"told": {"r0": [(UNIX_S, {"oldest_wait_ms": None})]}},
    ],
)
def test_whatever_serve_says_the_policy_holds_and_does_not_raise(changes: dict[str, Any]) -> None:
    stage = Stage()
    for name, value in changes.items():
        setattr(stage, name, value)
    replicas, state = stage.policy(stage.context())
    assert isinstance(replicas, int) and state == {}
    assert stage.meter.values["grix_scale_reason", "fault"] == 1.0


def test_an_object_that_is_no_context_at_all_does_not_raise() -> None:
    assert Stage().policy(object()) == (1, {})


def test_a_meter_that_raises_costs_no_decision() -> None:
    class Broken(FakeMeter):
        def set(self, *_: Any) -> None:
            raise RuntimeError("no meter")

    stage = Stage()
    stage.policy = QueueLatencyPolicy(meter=Broken())
    stage.all_quiet()
    assert stage.policy(stage.context())[1] == {}


def test_arguments_it_does_not_know_are_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        stage = Stage(target_ms=3, window=1)
    assert "goes on without: target_ms, window" in caplog.text
    stage.all_quiet()
    assert stage.decided() == (1, "quiet")


@pytest.mark.parametrize(("high", "low", "expected"), [(0, 0, 1), (1, 5, 1), (8, -3, 2)])
def test_bounds_of_a_region_that_is_turned_down(high: int, low: int, expected: int) -> None:
    stage = Stage(high=high, low=low)
    stage.says("r0", {**QUIET, "started_rps": 1.0, "oldest_wait_ms": 60.0})
    assert stage.policy(stage.context())[0] == expected


def test_changes_are_counted_and_gauges_told_again_before_they_fade() -> None:
    stage = Stage(target=1)
    stage.says("r0", QUIET)
    stage.decided()
    told = stage.meter.sets
    stage.decided()
    assert stage.meter.sets == told
    stage.passes(5.0)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    stage.decided()
    assert stage.meter.values["grix_scale_changes_total", "queue_wait"] == 1.0
    assert stage.meter.sets == 2 * told


def test_every_metric_it_exports_is_in_the_table() -> None:
    stage = Stage(target=1)
    stage.says("r0", QUIET)
    stage.decided()
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    stage.passes(1.0)
    stage.says("r0", {**QUIET, "ongoing_requests": 16.0, "oldest_wait_ms": 400.0})
    stage.decided()
    assert {name for name, _ in stage.meter.values} == {metric.name for metric in SCALING}


def test_serve_takes_the_class_by_its_path_and_makes_one_object_of_it() -> None:
    config = AutoscalingConfig(
        policy={"policy_function": "autoscale.ray_policy:QueueLatencyPolicy", "policy_kwargs": {"region": "cloud-a"}}
    )
    made = _resolve_policy_callable(config.policy)
    assert not inspect.isclass(made) and callable(made)
    assert pickle.loads(cloudpickle.dumps(type(made))) is not None


def test_work_that_serve_does_not_see_is_load_all_the_same() -> None:
    """Two task workers with four slots each, called by nobody, through a busy time and a quiet one."""
    settings = {"slots_per_replica": 4.0, "queue_above_ms": 10_000.0, "queue_below_ms": 1_000.0}
    stage = Stage(target=2)

    def all_say(tasks: float, oldest_s: float) -> None:
        load = {"oldest_wait_ms": 1000 * oldest_s, "started_rps": 0.5, "ongoing_requests": tasks}
        for n in range(2):
            stage.says(f"r{n}", {**load, "uncounted_requests": tasks}, settings)

    all_say(12.0, 15.0)
    assert stage.decided() == (3, "queue_wait")
    stage.passes(1.0)
    # All slots are taken and nobody waits: one fewer could not do it.
    all_say(4.0, 0.0)
    assert stage.decided() == (2, "steady")
    stage.passes(1.0)
    all_say(0.5, 0.0)
    assert stage.decided() == (1, "quiet")
