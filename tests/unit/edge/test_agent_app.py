"""An engine's application: which GPUs its replicas get, and which change restarts them."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeApplicationSchema

from cluster_configs.kind_agent import AgentSpec
from serve_app.edge.agent_app import agent_app

SPEC: dict[str, Any] = {
    "version": "1",
    "duty": "chat",
    "model": "m",
    "storage": {"modelPath": "s3://models/m/"},
    "gpu": {"vramRequired": "20Gi"},
    "maxReplicas": 4,
}
ARGS = {"agent": "qwen-chat", "model_path": "s3://models/m/", "engine": {}, "engine_digest": "0123456789abcdef"}


def app(**changes: Any) -> dict[str, Any]:
    return agent_app(AgentSpec.model_validate({**SPEC, **changes}), ARGS, "cloud-a", fresh_s=2.0, priority=100)


def deployment(**changes: Any) -> dict[str, Any]:
    (only,) = app(**changes)["deployments"]
    assert ServeApplicationSchema.model_validate(app(**changes)).deployments[0].name == "QwenAgent"
    return dict(only)


@pytest.mark.parametrize(
    ("gpu", "gpus", "labels"),
    [
        ({}, 1, None),
        ({"migSlice": "3g.40gb"}, 1, {"grix.io/mig-slice": "3g.40gb"}),
        ({"share": True, "fraction": 0.5}, 0.5, None),
    ],
)
def test_a_replica_has_its_gpu_alone_unless_the_policy_says_so(
    gpu: dict[str, Any], gpus: float, labels: dict[str, str] | None
) -> None:
    options = deployment(gpu={"vramRequired": "20Gi", **gpu})["ray_actor_options"]
    assert (options["num_cpus"], options["num_gpus"], options.get("label_selector")) == (1, gpus, labels)


def test_ranks_have_a_whole_gpu_each() -> None:
    made = deployment(engine={"tensorParallelSize": 2})
    assert made["placement_group_bundles"] == [{"CPU": 1.0, "GPU": 1.0}, {"GPU": 1.0}]
    assert "num_gpus" not in made["ray_actor_options"]


def test_the_cooldown_is_how_long_serve_waits() -> None:
    up = {"metric": "queue_ms", "above": 250, "action": "scale_up"}
    down = {"metric": "queue_ms", "below": 50, "action": "scale_down", "cooldown": "5m"}
    scaling = deployment(scaleTriggers=[up, down])["autoscaling_config"]
    assert (scaling["upscale_delay_s"], scaling["downscale_delay_s"]) == (0, 300.0)


TUNED = [
    {"maxQueueMs": 400},
    {"timeouts": {"start": "5m", "firstByte": "5s"}},
    {"scaling": {"headroom": 0.5, "stepUp": 3, "stepDown": 0.25}},
    {"minReplicas": 2, "maxReplicas": 9},
    {"scaleTriggers": [
        {"metric": "queue_ms", "above": 900, "action": "scale_up"},
        {"metric": "queue_ms", "below": 90, "action": "scale_down", "cooldown": "1h"},
    ]},
]  # fmt: skip


@pytest.mark.parametrize("changes", TUNED)
def test_what_an_operator_tunes_restarts_nothing(changes: dict[str, Any]) -> None:
    before, after = app(), app(**changes)
    assert before != after
    versions = [get_app_code_version(ServeApplicationSchema.model_validate(one)) for one in (before, after)]
    assert versions[0] == versions[1]
    light = {"user_config", "autoscaling_config"}
    heavy = [{k: v for k, v in one["deployments"][0].items() if k not in light} for one in (before, after)]
    assert heavy[0] == heavy[1]


def test_another_policy_would_restart_everything() -> None:
    before, after = app(), app()
    after["deployments"][0]["autoscaling_config"]["policy"]["policy_kwargs"] = {"region": "cloud-b"}
    versions = [get_app_code_version(ServeApplicationSchema.model_validate(one)) for one in (before, after)]
    assert versions[0] != versions[1]
