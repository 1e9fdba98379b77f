"""The Serve config of the shipped set for one machine: exact structure, and what changes which digest."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.bundle import Config
from cluster_configs.load import load_paths, local_paths
from cluster_configs.table import table_of
from serve_app.core.names import digest_of
from serve_app.edge.model_files import model_digest
from serve_app.edge.serve_config import owners_args, render, use_redis


def local(folder: Path | None = None, *changes: tuple[str, str, str]) -> Config:
    """The shipped set, or a copy of it in ``folder`` with texts of its files replaced."""
    if folder is None:
        return load_paths(local_paths(), {})
    for path in local_paths():
        for file in sorted(path.rglob("*.yaml")) if path.is_dir() else [path]:
            copy = folder / file.relative_to(local_paths()[0].parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text("utf-8"), "utf-8")
    for name, old, new in changes:
        text = (folder / name).read_text("utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), "utf-8")
    return load_paths(local_paths(folder), {})


def rendered(config: Config, **options: Any) -> dict[str, Any]:
    return render(config, "cloud-a", http_host="127.0.0.1", http_port=8000, **options)


def releases(config: Config) -> dict[str, tuple[str, str]]:
    """Engine and release digest by agent."""
    table = table_of(rendered(config)["applications"][0]["deployments"][0]["user_config"])
    return {name: (agent.engine_digest, agent.release) for name, agent in table.agents.items()}


@pytest.mark.parametrize("agent", [None, "qwen-chat"])
def test_who_confirms_a_language_reaches_the_routers(agent: str | None) -> None:
    config = local()
    spec = config.routes.spec
    languages = spec.languages.model_copy(update={"confirm": agent})
    routes = config.routes.model_copy(update={"spec": spec.model_copy(update={"languages": languages})})
    made = rendered(replace(config, routes=routes))["applications"][0]["deployments"][0]["user_config"]
    assert table_of(json.loads(json.dumps(made))).languages.confirm == agent


def test_one_router_and_one_engine_that_four_agents_share() -> None:
    made = rendered(local())
    assert {k: v for k, v in made.items() if k != "applications"} == {
        "proxy_location": "HeadOnly",
        "logging_config": {"enable_access_log": False},
        "http_options": {"host": "127.0.0.1", "port": 8000},
    }
    router, engine, region = made["applications"]
    assert region["name"] == "grix-region"
    assert (router["name"], router["route_prefix"], router["import_path"]) == (
        "grix",
        "/",
        "deployments.app:build_router",
    )
    assert re.fullmatch(r"qwen-chat--[0-9a-f]{8}", engine["name"])
    assert engine["name"] == f"qwen-chat--{engine['args']['engine_digest'][:8]}"
    assert set(router["deployments"][0]["user_config"]["engines"].values()) == {engine["args"]["engine_digest"]}
    assert sorted(router["deployments"][0]["user_config"]["engines"]) == [
        "edge-chat",
        "qwen-chat",
        "qwen-coder",
        "qwen-doc",
    ]


def test_the_engines_application_to_the_last_key() -> None:
    engine = rendered(local())["applications"][1]
    facts = {"max_model_len": 4096, "dtype": engine["args"]["engine"]["dtype"]}
    digest = digest_of({"weights": model_digest("embedded:tiny-qwen"), "engine": facts})
    assert engine == {
        "name": f"qwen-chat--{digest[:8]}",
        "route_prefix": None,
        "import_path": "deployments.app:build_agent",
        "args": {
            "agent": "qwen-chat",
            "model_path": "embedded:tiny-qwen",
            "engine": facts,
            "engine_digest": digest,
        },
        "deployments": [
            {
                "name": "QwenAgent",
                "num_replicas": "auto",
                "max_ongoing_requests": 64,
                "max_queued_requests": 1024,
                "request_router_config": {"initial_backoff_s": 0.003, "backoff_multiplier": 2, "max_backoff_s": 0.02},
                "autoscaling_config": {
                    "min_replicas": 1,
                    "max_replicas": 1,
                    "target_ongoing_requests": 16,
                    "upscale_delay_s": 0,
                    "downscale_delay_s": 1800.0,
                    "metrics_interval_s": 1.0,
                    "look_back_period_s": 10.0,
                    "policy": {
                        "policy_function": "autoscale.ray_policy:QueueLatencyPolicy",
                        "policy_kwargs": {"region": "cloud-a"},
                    },
                },
                "user_config": {
                    "log_level": "INFO",
                    "stall_after_s": 3.0,
                    "fresh_s": 2.0,
                    "start_limit_s": 1800.0,
                    "priority": 100,
                    "first_token_limit_s": 30.0,
                    "scaling": {
                        "slots_per_replica": 16.0,
                        "headroom_ratio": 0.0,
                        "step_up_ratio": 2.0,
                        "step_down_ratio": 0.0,
                        "queue_above_ms": 250.0,
                        "queue_below_ms": 50.0,
                        "kv_above_ratio": 0.85,
                    },
                },
                "graceful_shutdown_timeout_s": 600.0,
                "health_check_period_s": 2.0,
                "health_check_timeout_s": 30.0,
                "ray_actor_options": engine["deployments"][0]["ray_actor_options"],
            }
        ],
    }


def test_what_changes_speed_only_travels_in_the_environment() -> None:
    actor = rendered(local())["applications"][1]["deployments"][0]["ray_actor_options"]
    environment = actor["runtime_env"]["env_vars"]
    assert json.loads(environment.pop("GRIX_ENGINE_RESOURCES")) == {
        "max_num_seqs": 16,
        "tensor_parallel_size": 1,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "kv_cache_memory_bytes": 128 * 2**20,
    }
    assert environment == {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIGURE_LOGGING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }
    assert actor == {"num_cpus": 1, "runtime_env": {"env_vars": environment}}


def test_the_detector_is_in_the_router_unless_written() -> None:
    app = rendered(local())["applications"][0]
    assert (app["args"], [d["name"] for d in app["deployments"]]) == ({"detector": "router"}, ["Router"])


def test_tls_files_reach_the_proxy(tmp_path: Path) -> None:
    tls = ("local.yaml", "        port: 8000 ", "        tls: {certFile: /c.pem, keyFile: /k.pem}\n        port: 8000 ")
    options = rendered(local(tmp_path, tls))["http_options"]
    assert (options["ssl_certfile"], options["ssl_keyfile"]) == ("/c.pem", "/k.pem")
    assert set(rendered(local())["http_options"]) == {"host", "port"}


def test_router_and_detector_are_thin_and_do_their_own_admission(tmp_path: Path) -> None:
    apart = ("local.yaml", "      role: primary", "      role: primary\n      detectorPlacement: deployment")
    app = rendered(local(tmp_path, apart))["applications"][0]
    assert app["args"] == {"detector": "deployment"}
    router, detector = app["deployments"]
    config = router.pop("user_config")
    assert sorted(config) == ["documents", "elsewhere", "engines", "logLevel", "openAccess", "region", "taskRegions"]
    assert (config["openAccess"], config["region"]["name"]) == (False, "cloud-a")
    assert router == {
        "name": "Router",
        "num_replicas": router["num_replicas"],
        "max_ongoing_requests": 10_000,
        "max_queued_requests": 1_000,
        "graceful_shutdown_timeout_s": 600.0,
        "health_check_period_s": 2.0,
        "ray_actor_options": {"num_cpus": 0.1},
    }
    assert detector == {
        "name": "LanguageDetector",
        "num_replicas": detector["num_replicas"],
        "max_ongoing_requests": 1000,
        "max_queued_requests": 1000,
        "user_config": {
            "languages": ["ar", "en", "es", "id", "ja", "ko", "th", "vi", "zh", "zh-Hant"],
            "equivalent": [["id", "ms"]],
            "min_confidence": 0.5,
        },
        "ray_actor_options": {"num_cpus": 0.1},
    }


@pytest.mark.parametrize(("own", "alias", "priority"), [(30, 20, 30), (30, 300, 300)])
def test_an_engine_is_as_important_as_the_most_important_agent_that_uses_it(
    own: int, alias: int, priority: int
) -> None:
    config = local()
    said = {name: own if name == "qwen-chat" else alias for name in config.agents}
    agents = {
        name: policy.model_copy(update={"spec": policy.spec.model_copy(update={"priority": said[name]})})
        for name, policy in config.agents.items()
    }
    engine = rendered(replace(config, agents=agents))["applications"][1]
    assert engine["deployments"][0]["user_config"]["priority"] == priority


def test_the_config_is_plain_json_and_the_same_each_time() -> None:
    made = rendered(local())
    assert json.loads(json.dumps(made)) == made
    assert rendered(local()) == made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kvCacheMemory: 128Mi", "kvCacheMemory: 64Mi"),
        ("maxNumSeqs: 16", "maxNumSeqs: 4"),
        ("cpuThreads: 1 ", "cpuThreads: 2 "),
        ("maxTokensDefault: 512", "maxTokensDefault: 256"),
    ],
)
def test_speed_memory_and_defaults_are_not_in_the_engines_digest(old: str, new: str, tmp_path: Path) -> None:
    assert releases(local(tmp_path, ("local.yaml", old, new))) == releases(local())


def test_four_times_the_slots_are_let_in_and_sixty_four_times_wait(tmp_path: Path) -> None:
    deployment = rendered(local(tmp_path, ("local.yaml", "maxNumSeqs: 16", "maxNumSeqs: 4")))["applications"][1][
        "deployments"
    ][0]
    assert (deployment["max_ongoing_requests"], deployment["max_queued_requests"]) == (16, 256)
    assert deployment["autoscaling_config"]["target_ongoing_requests"] == 4


def test_the_length_of_the_context_is_another_engine_and_another_release(tmp_path: Path) -> None:
    before = releases(local())
    after = releases(local(tmp_path, ("local.yaml", "maxModelLen: 4096", "maxModelLen: 2048")))
    assert set(after) == set(before)
    for name, (engine, release) in before.items():
        assert after[name][0] != engine and after[name][1] != release


def test_a_templates_text_is_another_release_of_the_same_engine(tmp_path: Path) -> None:
    before = releases(local())
    after = releases(local(tmp_path, ("templates/en.yaml", "in few words", "in short")))
    for name, (engine, release) in before.items():
        assert after[name][0] == engine and after[name][1] != release


def test_shutdown_waits_for_the_longest_limit(tmp_path: Path) -> None:
    longer = ("local.yaml", "  duty: worker", "  duty: worker\n  timeouts: {total: 30m}")
    router, engine, region = rendered(local(tmp_path, longer))["applications"]
    assert router["deployments"][0]["graceful_shutdown_timeout_s"] == 1800.0
    assert region["deployments"][0]["graceful_shutdown_timeout_s"] == 1800.0
    assert engine["args"] == rendered(local())["applications"][1]["args"]


def test_another_model_replaces_every_policys(tmp_path: Path) -> None:
    engine = rendered(local(), model="Qwen/Qwen2.5-7B@v1")["applications"][1]
    assert engine["args"]["model_path"] == "hf:Qwen/Qwen2.5-7B@v1"
    assert engine["args"]["engine"]["revision"] == engine["args"]["engine"]["tokenizer_revision"] == "v1"
    environment = engine["deployments"][0]["ray_actor_options"]["runtime_env"]["env_vars"]
    assert environment["HF_HUB_OFFLINE"] == "0"


def test_an_unknown_region_is_told_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"^region moon: is not in federation local; allowed: cloud-a, cloud-b$"):
        render(local(), "moon", http_host="127.0.0.1", http_port=8000)


def test_a_region_nobody_selects_says_so() -> None:
    with pytest.raises(LookupError, match=r"^region cloud-a: no AgentPolicy selects it; see clusterSelector$"):
        owners_args({}, None, "cloud-a")


def test_open_access_is_said_only_when_asked_for() -> None:
    router = rendered(local(), open_access=True)["applications"][0]["deployments"][0]
    assert router["user_config"]["openAccess"] is True


def test_task_workers_are_there_where_the_region_asks_for_them(tmp_path: Path) -> None:
    block = "{light: {agent: qwen-chat, maxWorkers: 5}, heavy: {agent: qwen-doc, concurrency: 3}, limit: 10m}"
    before = {app["name"] for app in rendered(local())["applications"]}
    config = local(tmp_path, ("local.yaml", "role: primary", f"role: primary\n      tasks: {block}"))
    made = {app["name"]: app for app in rendered(config)["applications"]}
    assert made.keys() - before == {"grix-tasks-light", "grix-tasks-heavy"}
    light, heavy = made["grix-tasks-light"], made["grix-tasks-heavy"]
    assert (light["route_prefix"], light["args"]) == (None, {"class": "light"})
    (workers,) = light["deployments"]
    bounds = workers["autoscaling_config"]
    assert (bounds["min_replicas"], bounds["max_replicas"], workers["max_ongoing_requests"]) == (1, 5, 4)
    assert workers["graceful_shutdown_timeout_s"] == 60.0
    assert (workers["user_config"]["agent"], workers["user_config"]["limit_s"]) == ("qwen-chat", 600.0)
    assert heavy["deployments"][0]["max_ongoing_requests"] == 3
    use_redis({"applications": list(made.values())}, "redis://127.0.0.1:1/0", "/p", log=False)
    assert workers["user_config"]["region"]["redis"] == {"url": "redis://127.0.0.1:1/0", "passwordFile": "/p"}
    table = table_of(made["grix"]["deployments"][0]["user_config"])
    assert table.task_agents == {"light": "qwen-chat", "heavy": "qwen-doc"}
