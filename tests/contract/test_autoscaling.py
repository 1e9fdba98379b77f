"""The scaling policy in a real Serve controller: loaded from YAML, fed by replicas, and without loss either way."""

from __future__ import annotations

import copy
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import ServeDeploySchema

from autoscale.ray_policy import QueueLatencyPolicy
from serve_app.core.preempt import RESTORE_S, Change
from serve_app.edge.agent_app import POLICY
from serve_app.edge.serve_apps import same
from serve_app.edge.start_again import AGAIN_S
from tests.scaled_region import (
    ARGS,
    COOLDOWN_S,
    DOC,
    DOC_ARGS,
    NAME,
    ROOT,
    SLOTS,
    SPEC,
    TOTAL_S,
    WINDOW_S,
    Serving,
    config,
    engine,
    running,
    with_entry,
)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with running() as made:
        yield made


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> None:
    """Each story on the cluster begins with one replica and no load."""
    if "serving" in request.fixturenames:
        made: Serving = request.getfixturevalue("serving")
        made.put()
        made.until(lambda: made.replicas() == {"RUNNING": 1}, 90.0)


def in_a_clean_process(code: str) -> str:
    """What it prints, in a process with nothing but the packages of the project on its path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, "RAY_SERVE_LOG_TO_STDERR": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_policy_loads_from_yaml_in_a_clean_process() -> None:
    text = yaml.safe_dump(config(8000))
    code = f"""
import yaml
from ray.serve.schema import ServeDeploySchema
from ray.serve.config import AutoscalingConfig
from ray.serve._private.autoscaling_state import _resolve_policy_callable
config = ServeDeploySchema.model_validate(yaml.safe_load({text!r}))
scaling = config.applications[1].deployments[0].autoscaling_config
made = AutoscalingConfig(**scaling) if isinstance(scaling, dict) else scaling
policy = _resolve_policy_callable(made.policy)
print(type(policy).__name__, policy(object()))
"""
    assert in_a_clean_process(code) == "QueueLatencyPolicy (1, {})"


def test_what_serve_pickles_loads_where_the_package_is_installed() -> None:
    pickled = AutoscalingPolicy(policy_function=POLICY).get_serialized_policy_def()
    code = f"from ray import cloudpickle; print(cloudpickle.loads({pickled!r})(region='x')(object()))"
    assert in_a_clean_process(code) == "(1, {})"


def test_arguments_that_are_no_data_are_refused_when_the_config_is_checked() -> None:
    wrong = copy.deepcopy(config(8000))
    policy = wrong["applications"][1]["deployments"][0]["autoscaling_config"]["policy"]
    policy["policy_kwargs"] = {"region": object()}
    with pytest.raises(ValidationError, match="not JSON-serializable"):
        AutoscalingPolicy(**policy)
    assert ServeDeploySchema.model_validate(config(8000)) is not None


class Strict:
    """A policy that refuses what it does not know, as any class does."""

    def __init__(self, region: str) -> None: ...


def test_arguments_that_the_policy_does_not_know_must_not_stop_the_controller() -> None:
    wrong = copy.deepcopy(config(8000))
    policy = wrong["applications"][1]["deployments"][0]["autoscaling_config"]["policy"]
    policy["policy_kwargs"]["target_ms"] = 250
    # Serve takes them whoever the policy is, and makes the object in its controller, where nothing catches an error.
    ServeDeploySchema.model_validate(wrong)
    strict = AutoscalingPolicy(policy_function=f"{__name__}:Strict", policy_kwargs=policy["policy_kwargs"])
    with pytest.raises(TypeError, match="target_ms"):
        register(strict)
    register(AutoscalingPolicy(**policy))


def register(policy: AutoscalingPolicy) -> None:
    """What Serve's controller does with each deployment of a config that was put."""
    scaling = AutoscalingConfig(min_replicas=1, max_replicas=2, policy=policy)
    deployed: Any = SimpleNamespace(autoscaling_config=scaling, gang_scheduling_config=None)
    info: Any = SimpleNamespace(
        deployment_config=deployed,
        target_capacity=None,
        target_capacity_direction=None,
        config_changed=lambda _: False,
    )
    assert DeploymentAutoscalingState(DeploymentID("QwenAgent", NAME)).register(info, 1) == 1


def test_the_policy_knows_every_argument_that_is_rendered() -> None:
    for app in config(8000)["applications"][1:]:
        policy = app["deployments"][0]["autoscaling_config"]["policy"]
        assert policy["policy_function"] == POLICY
        bound = inspect.signature(QueueLatencyPolicy).bind(**policy["policy_kwargs"])
        assert "unknown" not in bound.arguments


@pytest.mark.parametrize(
    "bad",
    [
        {"scaling": {"stepUp": 0.5}},
        {"scaling": {"target": 1}},
        {"maxReplicas": 0},
        # Nobody writes the policy's own arguments.
        {"policyKwargs": {"target_ms": 250}},
        {"scaling": {"policyKwargs": {"target_ms": 250}}},
    ],
)
def test_settings_that_cannot_be_do_not_reach_the_controller(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"less|greater|Extra inputs"):
        config(8000, **bad)


def test_serve_tells_the_application_back_as_it_was_put(serving: Serving) -> None:
    # Else the region's writer would put it back again and again.
    for app in config(serving.port)["applications"]:
        assert same(serving.rest.details()["applications"][app["name"]]["deployed_app_config"], app)


def test_a_second_replica_comes_at_once_and_goes_after_the_cooldown_and_nobody_notices(serving: Serving) -> None:
    changes = ("grix_scale_changes_total", "qwen-chat", "queue_wait")
    before = serving.metric(*changes) or 0.0
    # Eight callers on four slots: half of them wait for a second.
    with serving.asking(2 * SLOTS, 1.0) as statuses:
        serving.until(lambda: serving.target() == 2, 20.0)
        serving.until(lambda: serving.replicas().get("RUNNING") == 2, 30.0)
        serving.until(lambda: serving.metric("grix_scale_wanted_replicas", "qwen-chat") == 2.0, 30.0)
        serving.until(lambda: (serving.metric(*changes) or 0.0) > before, 30.0)
    with serving.asking(2, 1.5) as fewer:
        gone_s = serving.until(lambda: serving.target() == 1, COOLDOWN_S + WINDOW_S + 20.0)
        serving.until(lambda: serving.replicas() == {"RUNNING": 1}, 30.0)
    assert gone_s >= COOLDOWN_S
    assert set(statuses) == {200} and set(fewer) == {200}


def test_a_replica_that_goes_ends_the_streams_that_it_runs_and_those_that_wait_inside_it(serving: Serving) -> None:
    serving.put(minReplicas=2)
    serving.until(lambda: serving.replicas() == {"RUNNING": 2}, 60.0)
    deployment = serving.rest.details()["applications"][NAME]["deployments"]["QwenAgent"]
    # All the time that a stream may take, counted from when it came.
    assert deployment["deployment_config"]["graceful_shutdown_timeout_s"] == TOTAL_S
    both = serving.pids()
    serving.begun.clear()
    serving.ended.clear()
    # Each caller once. As many as run on both wait inside them.
    with serving.asking(4 * SLOTS, 5.0, gap_s=600.0) as statuses:
        serving.until(lambda: len(serving.begun) >= 2 * SLOTS, 30.0)
        serving.rest.put_config(config(serving.port, maxReplicas=1))
        serving.until(lambda: len(serving.pids()) == 1, 30.0)
        serving.until(lambda: len(statuses) == 4 * SLOTS, 60.0)
    assert set(statuses) == {200} and set(serving.ended) == both
    serving.until(lambda: serving.replicas() == {"RUNNING": 1}, 30.0)


def test_a_change_of_the_triggers_restarts_nothing_and_counts_at_once(serving: Serving) -> None:
    patient = [{**trigger} for trigger in SPEC["scaleTriggers"]]
    patient[0]["above"] = 3_000_000
    serving.put(scaleTriggers=patient)
    # From here on nothing goes up; what waited a moment ago may have brought a second one before.
    serving.until(lambda: serving.metric("grix_scale_above_ms", "qwen-chat") == 3_000_000.0)
    serving.until(lambda: serving.target() == 1 and serving.replicas() == {"RUNNING": 1})
    pids = serving.pids()
    with serving.asking(2 * SLOTS, 1.0) as statuses:
        # One replica takes twelve seconds for them.
        serving.until(lambda: len(statuses) >= 12 * SLOTS, 60.0)
        assert serving.target() == 1 and serving.pids() == pids
        serving.put()
        serving.until(lambda: serving.target() == 2, 15.0)
        assert pids <= serving.pids()
    assert set(statuses) == {200}


def test_a_more_important_agent_gets_the_room_of_a_less_important_one(serving: Serving, tmp_path: Path) -> None:
    def put(doc_least: int) -> None:
        patient = [SPEC["scaleTriggers"][0], {**SPEC["scaleTriggers"][1], "cooldown": "30m"}]
        doc = engine(DOC_ARGS, 50, 1, minReplicas=doc_least, maxReplicas=3, scaleTriggers=patient)
        serving.put_all(with_entry(serving.port, engine(ARGS, 100, 1), doc))

    # All three slots are taken.
    put(doc_least=2)
    put(doc_least=1)
    chat, doc = serving.pids(), serving.pids(DOC)
    assert (len(chat), len(doc)) == (1, 2)
    with serving.kept(tmp_path) as kept, serving.asking(SLOTS, 2.0, app=DOC) as less:
        with serving.asking(2 * SLOTS, 1.0) as more:
            serving.until(lambda: serving.replicas() == {"RUNNING": 2}, 60.0)
        serving.until(lambda: serving.replicas(DOC) == {"RUNNING": 1}, 30.0)
    assert set(more) == {200} and set(less) == {200}
    # Who stays was not touched, and what was lowered looks foreign to nobody.
    assert chat < serving.pids() and serving.pids(DOC) < doc
    assert (kept.changed, kept.put_back) == ([Change(DOC, 2, 1, NAME)], [])
    assert (serving.most(DOC), serving.most(NAME)) == (1, 2)
    pids = serving.pids(DOC)
    with serving.kept(tmp_path) as after:
        serving.until(lambda: len(after.changes) >= 2)
        assert (after.changed, serving.most(DOC)) == ([], 1)
        after.ahead_s = RESTORE_S
        serving.until(lambda: serving.most(DOC) == 3, 20.0)
    assert (after.changed, after.put_back) == ([Change(DOC, 1, 3, None)], [])
    assert serving.pids(DOC) == pids


def test_what_serve_has_given_up_is_tried_again(serving: Serving, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    doc = engine(DOC_ARGS, 50, 1) | {"args": {"needs": str(mended)}}
    put = with_entry(serving.port, engine(ARGS, 100, 1), doc)

    def given_up() -> bool:
        apps = [app for app in serving.rest.status() if app.name == DOC]
        return [(app.status, [dict(d.replicas) for d in app.deployments]) for app in apps] == [("DEPLOY_FAILED", [{}])]

    serving.rest.put_config(put)
    serving.until(given_up, 60.0)
    # Nothing changes that by itself, nor does the same config.
    mended.touch()
    serving.rest.put_config(put)
    time.sleep(3.0)
    assert given_up()
    with serving.kept(tmp_path) as kept:
        serving.until(lambda: len(kept.changes) >= 2)
        kept.ahead_s = AGAIN_S
        serving.until(lambda: serving.replicas(DOC) == {"RUNNING": 1}, 30.0)
        pids, looks = serving.pids(DOC), len(kept.changes)
        serving.until(lambda: len(kept.changes) >= looks + 2)
    assert (kept.put_back, serving.pids(DOC)) == ([], pids)


def test_callers_who_left_while_they_waited_leave_no_queue(serving: Serving) -> None:
    serving.put(maxReplicas=1)
    counted = ("serve_autoscaling_total_requests", NAME)
    # All slots and all places of the replica are taken, the rest stands in the handle.
    with serving.asking(10 * SLOTS, 60.0, leaves_s=10.0, gap_s=60.0) as statuses:
        serving.until(lambda: (serving.metric(*counted) or 0.0) > 4 * SLOTS, 30.0)
        serving.until(lambda: len(statuses) == 10 * SLOTS, 30.0)
    assert set(statuses) == {0}
    serving.until(lambda: serving.metric(*counted) == 0.0, 40.0)
    serving.put()
    time.sleep(5.0)
    assert serving.target() == 1


def test_zero_is_reached_only_without_traffic_and_any_call_wakes(serving: Serving) -> None:
    pids = serving.pids()
    with serving.asking(1, 0.05, gap_s=0.4) as statuses:
        serving.put(minReplicas=0)
        # A call each 0.45 s, for longer than a quiet agent is kept.
        before, calls = len(statuses), round((COOLDOWN_S + WINDOW_S + 3.0) / 0.45)
        serving.until(lambda: len(statuses) >= before + calls)
        assert serving.target() == 1 and serving.pids() == pids
    assert set(statuses) == {200}
    serving.until(lambda: serving.target() == 0, COOLDOWN_S + WINDOW_S + 30.0)
    serving.until(lambda: serving.pids() == set(), 30.0)
    assert serving.ask(0.1, leaves_s=60.0) == 200
    assert serving.target() == 1
