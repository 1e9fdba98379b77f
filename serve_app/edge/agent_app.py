"""The Serve application of one engine, as part of a region's Serve config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.scale_trigger import LOAD_WINDOW_S, quiet_s, settings
from serve_app.core.names import app_name
from serve_app.core.nodes import MIG_LABEL
from serve_app.edge.model_files import hub_revision

#: Environment variable that carries engine options which are not in the engine digest.
RESOURCES_VARIABLE: Final = "GRIX_ENGINE_RESOURCES"
#: vLLM's variable for the threads of an engine on CPU; no other engine has it.
THREADS_VARIABLE: Final = "VLLM_CPU_OMP_THREADS_BIND"
#: Keys of an engine's user_config: seconds until a replica runs, which the RegionAgent reads too, and until a first
#: token.
START_LIMIT: Final = "start_limit_s"
FIRST_TOKEN_LIMIT: Final = "first_token_limit_s"
#: How important the engine is. The RegionAgent reads it, not the engine: the less important one gives way.
PRIORITY: Final = "priority"
#: Twice would keep a batch ready, and was tried: an overload of engines with two slots was then never over
#: ``maxQueueMs`` by what they report, because the rest waits in the Routers, and nothing went to other regions.
ONGOING_PER_SLOT: Final = 4
#: Calls that may wait in a Router's handle, for each slot of an engine: more than can be served in time is refused.
QUEUED_PER_SLOT: Final = 64
#: How soon a Router looks again for a free place when all are taken. Serve's own 25 to 500 ms leave batches half empty.
LOOK_AGAIN: Final = {"initial_backoff_s": 0.003, "backoff_multiplier": 2, "max_backoff_s": 0.02}
#: Serve's autoscaler is told so often how a replica is.
TOLD_S: Final = 1.0
POLICY: Final = "autoscale.ray_policy:QueueLatencyPolicy"


def engine_resources(spec: schema.AgentSpec) -> dict[str, Any]:
    """Engine options that change speed and memory, not answers; names are vLLM's."""
    engine = spec.engine
    resources: dict[str, Any] = {
        "max_num_seqs": engine.max_num_seqs,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "enforce_eager": spec.eager,
        "enable_prefix_caching": engine.enable_prefix_caching,
    }
    if engine.kv_cache_memory_bytes is not None:
        resources["kv_cache_memory_bytes"] = engine.kv_cache_memory_bytes
    else:
        resources["gpu_memory_utilization"] = engine.gpu_memory_utilization
    return resources


def start_limits(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds until a replica runs, and until a first token. Configs of an earlier Grix have no such settings."""
    usual = schema.Timeouts()
    return float(settings.get(START_LIMIT, usual.start_s)), float(settings.get(FIRST_TOKEN_LIMIT, usual.first_byte_s))


def _on_gpus(gpu: schema.Gpu, ranks: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Whole GPUs unless the policy shares one; with tensor parallelism in a placement group on one node."""
    options: dict[str, Any] = {"num_cpus": 1, "runtime_env": {"env_vars": dict(environment)}}
    if ranks > 1:
        bundles = [{"CPU": 1.0, "GPU": 1.0}, *({"GPU": 1.0} for _ in range(ranks - 1))]
        return {
            "ray_actor_options": options,
            "placement_group_bundles": bundles,
            "placement_group_strategy": "STRICT_PACK",
        }
    options["num_gpus"] = gpu.fraction if gpu.share else 1
    if gpu.mig_slice is not None:
        # Ray counts each slice as a GPU; which ones a node has, its label says.
        options["label_selector"] = {MIG_LABEL: gpu.mig_slice}
    return {"ray_actor_options": options}


def _actor(spec: schema.AgentSpec, model_path: str) -> dict[str, Any]:
    """Actor options: GPUs, or bounded, unpinned CPU threads."""
    environment = {
        RESOURCES_VARIABLE: json.dumps(engine_resources(spec), sort_keys=True),
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM's own set-up of logging closes all handlers there are, and nothing that a replica says afterwards reaches
        # Serve's file. Its warnings go to standard error.
        "VLLM_CONFIGURE_LOGGING": "0",
        # Only a policy that names a hub may reach one.
        "HF_HUB_OFFLINE": "0" if hub_revision(model_path) else "1",
    }
    if spec.gpu is not None:
        return _on_gpus(spec.gpu, spec.engine.tensor_parallel_size, environment)
    threads = spec.engine.cpu_threads
    environment |= {
        # Unpinned: "auto" binds every engine of a machine to the same cores.
        THREADS_VARIABLE: "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Eager means eager: log-probabilities would else compile a kernel at the first request, with a compiler that a
        # fresh machine does not have.
        "TORCHDYNAMO_DISABLE": "1",
        # One rank runs in the engine's own process. In a process beside it, each would spin while it waits for the
        # other: twice the cores for the same tokens, and what yields in a loop starves other processes for seconds.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    return {"ray_actor_options": {"num_cpus": threads, "runtime_env": {"env_vars": environment}}}


def _autoscaling(spec: schema.AgentSpec, region: str) -> dict[str, Any]:
    """Bounds and delays. What the policy is told of the triggers travels by the replicas: see ``user_config``.

    A change of ``policy`` restarts every replica, so that nothing is in it that an operator may want to change.
    """
    return {
        "min_replicas": spec.min_replicas,
        "max_replicas": spec.max_replicas,
        "target_ongoing_requests": spec.engine.max_num_seqs,
        "upscale_delay_s": 0,
        "downscale_delay_s": quiet_s(spec.scale_triggers),
        "metrics_interval_s": TOLD_S,
        "look_back_period_s": LOAD_WINDOW_S,
        "policy": {"policy_function": POLICY, "policy_kwargs": {"region": region}},
    }


def agent_app(
    spec: schema.AgentSpec, args: Mapping[str, Any], region: str, fresh_s: float, priority: int
) -> dict[str, Any]:
    """The application of an engine; ``args`` is what is in its digest.

    ``fresh_s`` is how old an engine's last token may be at work without a new proof. ``priority`` is that of the most
    important agent that uses the engine.
    """
    slots = spec.engine.max_num_seqs
    return {
        "name": app_name(args["agent"], args["engine_digest"]),
        "route_prefix": None,
        "import_path": "deployments.app:build_agent",
        "args": dict(args),
        "deployments": [
            {
                "name": "QwenAgent",
                # Only so does Serve load the policy where the application is built, and say what is wrong with it.
                "num_replicas": "auto",
                # One batch runs, three wait inside the engine, where its priority orders them; the rest in the handle,
                # which looks for free places again and again.
                "max_ongoing_requests": ONGOING_PER_SLOT * slots,
                "max_queued_requests": QUEUED_PER_SLOT * slots,
                "request_router_config": dict(LOOK_AGAIN),
                "autoscaling_config": _autoscaling(spec, region),
                "user_config": {
                    "log_level": "INFO",
                    "stall_after_s": 3.0,
                    "fresh_s": fresh_s,
                    START_LIMIT: spec.timeouts.start_s,
                    PRIORITY: priority,
                    FIRST_TOKEN_LIMIT: spec.timeouts.first_byte_s,
                    "scaling": settings(spec.scale_triggers, spec.scaling, slots),
                },
                "graceful_shutdown_timeout_s": spec.timeouts.total_s,
                "health_check_period_s": 2.0,
                "health_check_timeout_s": 30.0,
                **_actor(spec, args["model_path"]),
            }
        ],
    }
