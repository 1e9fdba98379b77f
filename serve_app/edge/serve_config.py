"""A region's Serve config, from documents: what ``grix render`` prints and ``grix up`` deploys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.bundle import Config, bundle, engine_owner, languages_named
from serve_app.core.names import app_name, digest_of
from serve_app.edge.federation_apps import THIN_CPUS, control_config, region_app
from serve_app.edge.model_files import as_model_path, hub_revision, model_digest

#: Environment variable that carries engine options which are not in the engine digest.
RESOURCES_VARIABLE: Final = "GRIX_ENGINE_RESOURCES"
#: vLLM's variable for the threads of an engine on CPU; no other engine has it.
THREADS_VARIABLE: Final = "VLLM_CPU_OMP_THREADS_BIND"
#: Key of an engine's user_config: seconds until it runs. The RegionAgent reads it, not the engine.
START_LIMIT: Final = "start_limit_s"
#: Router and gateway do their own admission; Serve's default of 5 would be a hidden one.
INGRESS_ONGOING: Final = 10_000
#: Requests that may wait in the proxy while every Router is full; by default there is no bound.
INGRESS_QUEUED: Final = 1_000
ONGOING_PER_SLOT: Final = 2
#: Calls that may wait in a Router's handle, for each slot of an engine: more than can be served in time is refused.
QUEUED_PER_SLOT: Final = 64
#: How soon a Router looks again for a free place when all are taken. Serve's own 25 to 500 ms leave batches half empty.
LOOK_AGAIN: Final = {"initial_backoff_s": 0.003, "backoff_multiplier": 2, "max_backoff_s": 0.02}
UP_DELAY_S: Final = 0
DOWN_DELAY_S: Final = 1800


def agents_of(config: Config, region: schema.Region) -> dict[str, schema.AgentPolicy]:
    """The agents this region carries: selected by labels, aliases only where their engine runs."""
    facts = {"cloud": region.cloud, "region": region.name, "location": region.location, "role": region.role}
    mine = {n: a for n, a in config.agents.items() if a.spec.selects(**facts)}
    return {n: a for n, a in mine.items() if engine_owner(config.agents, n).metadata.name in mine}


def engine_args(name: str, spec: schema.AgentSpec, model_path: str) -> dict[str, Any]:
    """What is in the engine digest, and nothing else: weights, tokenizer, template, options that change answers."""
    engine: dict[str, Any] = {"max_model_len": spec.engine.max_model_len, "dtype": spec.engine.dtype}
    if spec.engine.quantization != "none":
        engine["quantization"] = spec.engine.quantization
    revision = hub_revision(model_path)
    if revision is not None:
        engine |= {"revision": revision, "tokenizer_revision": revision}
    facts = {"agent": name, "model_path": model_path, "engine": engine}
    # The path is where the weights lie, the digest is what they are: moving them does not change the engine.
    digest = digest_of({"weights": model_digest(model_path), "engine": engine})
    return {**facts, "engine_digest": digest}


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


def _actor(spec: schema.AgentSpec, model_path: str) -> dict[str, Any]:
    """Actor options: GPUs with a placement group for tensor parallelism, or bounded, unpinned CPU threads."""
    environment = {
        RESOURCES_VARIABLE: json.dumps(engine_resources(spec), sort_keys=True),
        "VLLM_NO_USAGE_STATS": "1",
        # Only a policy that names a hub may reach one.
        "HF_HUB_OFFLINE": "0" if hub_revision(model_path) else "1",
    }
    if spec.gpu is not None:
        options: dict[str, Any] = {"runtime_env": {"env_vars": environment}}
        size = spec.engine.tensor_parallel_size
        if size == 1:
            return {"ray_actor_options": {"num_cpus": 1, "num_gpus": 1, **options}}
        bundles = [{"CPU": 1.0, "GPU": 1.0}, *({"GPU": 1.0} for _ in range(size - 1))]
        return {
            "ray_actor_options": {"num_cpus": 1, **options},
            "placement_group_bundles": bundles,
            "placement_group_strategy": "STRICT_PACK",
        }
    threads = spec.engine.cpu_threads
    environment |= {
        # Unpinned: "auto" binds every engine of a machine to the same cores.
        THREADS_VARIABLE: "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Eager means eager: log-probabilities would else compile a kernel at the first request, with a compiler that a
        # fresh machine does not have.
        "TORCHDYNAMO_DISABLE": "1",
    }
    return {"ray_actor_options": {"num_cpus": threads, "runtime_env": {"env_vars": environment}}}


def _agent_app(spec: schema.AgentSpec, args: Mapping[str, Any], fresh_s: float) -> dict[str, Any]:
    """``fresh_s`` is how old an engine's last token may be at work without a new proof."""
    total_s = spec.timeouts.total_s
    slots = spec.engine.max_num_seqs
    return {
        "name": app_name(args["agent"], args["engine_digest"]),
        "route_prefix": None,
        "import_path": "deployments.app:build_agent",
        "args": dict(args),
        "deployments": [
            {
                "name": "QwenAgent",
                "num_replicas": "auto",
                # One batch runs, one waits inside the engine, where its priority orders it; the rest in the handle,
                # which looks for free places again and again.
                "max_ongoing_requests": ONGOING_PER_SLOT * slots,
                "max_queued_requests": QUEUED_PER_SLOT * slots,
                "request_router_config": dict(LOOK_AGAIN),
                "autoscaling_config": {
                    "min_replicas": spec.min_replicas,
                    "max_replicas": spec.max_replicas,
                    "target_ongoing_requests": slots,
                    "upscale_delay_s": UP_DELAY_S,
                    "downscale_delay_s": DOWN_DELAY_S,
                },
                "user_config": {
                    "log_level": "INFO",
                    "stall_after_s": 3.0,
                    "fresh_s": fresh_s,
                    START_LIMIT: spec.timeouts.start_s,
                },
                "graceful_shutdown_timeout_s": total_s,
                "health_check_period_s": 2.0,
                "health_check_timeout_s": 30.0,
                **_actor(spec, args["model_path"]),
            }
        ],
    }


def router_config(
    config: Config, region: schema.Region, engines: Mapping[str, str], open_access: bool
) -> dict[str, Any]:
    """Router's user_config: all it decides from. ``engines`` is the engine digest by agent.

    Agents of other regions are known too: every region is an entry to all of them.
    """
    others = [r for r in config.federation.spec.regions if r.name != region.name]
    elsewhere = {name for other in others for name in agents_of(config, other)} - engines.keys()
    return {
        "region": region.model_dump(mode="json", by_alias=True, exclude_none=True),
        "engines": dict(engines),
        "elsewhere": sorted(elsewhere),
        "documents": bundle(config),
        "openAccess": open_access,
        "logLevel": "INFO",
    }


def _router_app(
    config: Config, region: schema.Region, user_config: Mapping[str, Any], total_s: float
) -> dict[str, Any]:
    languages = config.routes.spec.languages
    detector_config = {
        "languages": sorted(languages_named(config) | languages.token_ratio.keys()),
        "equivalent": [list(group) for group in languages.equivalent],
        "min_confidence": languages.min_confidence,
    }
    thin = {"num_cpus": THIN_CPUS}
    router = {
        "name": "Router",
        "num_replicas": region.routers,
        "max_ongoing_requests": INGRESS_ONGOING,
        "max_queued_requests": INGRESS_QUEUED,
        "graceful_shutdown_timeout_s": total_s,
        "health_check_period_s": 2.0,
        "user_config": dict(user_config),
        "ray_actor_options": thin,
    }
    detector = {
        "name": "LanguageDetector",
        "num_replicas": region.detectors,
        "max_ongoing_requests": 1000,
        "max_queued_requests": 1000,
        "user_config": detector_config,
        "ray_actor_options": thin,
    }
    return {
        "name": "grix",
        "route_prefix": "/",
        "import_path": "deployments.app:build_router",
        "args": {"detector": region.detector_placement},
        "deployments": [router, detector] if region.detector_placement == "deployment" else [router],
    }


def _tls(region: schema.Region) -> dict[str, str]:
    tls = region.http.tls
    return {"ssl_certfile": tls.cert_file, "ssl_keyfile": tls.key_file} if tls is not None else {}


def owners_args(
    owners: Mapping[str, schema.AgentSpec], model: str | None, region_name: str
) -> dict[str, dict[str, Any]]:
    """Engine args by agent that owns an engine."""
    if not owners:
        raise LookupError(f"region {region_name}: no AgentPolicy selects it; see clusterSelector")
    args = {}
    for name, spec in owners.items():
        assert spec.storage is not None
        args[name] = engine_args(name, spec, as_model_path(model) if model is not None else spec.storage.model_path)
    return args


def engines_of(
    config: Config, agents: Mapping[str, schema.AgentPolicy], args: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The engine digest of each agent, aliases included."""
    return {n: str(args[engine_owner(config.agents, n).metadata.name]["engine_digest"]) for n in agents}


def use_redis(rendered: dict[str, Any], url: str, password_file: str) -> None:
    """Names a Redis in a rendered config whose Federation names none: the one that starts with the region."""
    redis = {"url": url, "passwordFile": password_file}
    for app in rendered["applications"]:
        for deployment in app["deployments"]:
            user_config = deployment["user_config"]
            if "region" in user_config:
                user_config["region"] = {**user_config["region"], "redis": redis}
            if "again" in user_config:
                user_config["again"]["redis"] = redis


def render(
    config: Config,
    region_name: str,
    *,
    http_host: str,
    http_port: int,
    model: str | None = None,
    open_access: bool = False,
) -> dict[str, Any]:
    """The Serve config of one region. ``model`` replaces every agent's ``storage.modelPath``.

    Raises:
        LookupError: when the federation has no such region, or the region carries no agent.
        ModelError: when a local model is missing.
    """
    region = config.federation.region(region_name)
    if region is None:
        known = ", ".join(r.name for r in config.federation.spec.regions)
        name = config.federation.metadata.name
        raise LookupError(f"region {region_name}: is not in federation {name}; allowed: {known}")
    agents = agents_of(config, region)
    owners = {n: a.spec for n, a in agents.items() if a.spec.engine_of is None}
    args = owners_args(owners, model, region_name)
    engines = engines_of(config, agents, args)
    total_s = max(a.spec.timeouts.total_s for a in agents.values())
    user_config = router_config(config, region, engines, open_access)
    again = {"http_host": http_host, "http_port": http_port, "model": model, "open_access": open_access}
    top = {
        "proxy_location": "HeadOnly",
        # The Router logs each request once, with all that is known of it; Serve would at each hop.
        "logging_config": {"enable_access_log": False},
        "http_options": {"host": http_host, "port": http_port, **_tls(region)},
    }
    ping_s = config.federation.spec.health.ping_s
    engine_apps = (_agent_app(owners[n], args[n], ping_s) for n in owners)
    apps = [_router_app(config, region, user_config, total_s), *engine_apps]
    if config.federation.spec.coordinator is not None:
        apps.append(region_app(config, region, user_config, total_s, again=again, top=top))
    return {**top, "applications": apps}


def render_control(config: Config, *, metrics: str | None = None, model: str | None = None) -> dict[str, Any]:
    """The Serve config of the control cluster. ``metrics`` is where the coordinator exports them, HOST:PORT.

    Raises:
        LookupError: when the federation has no coordinator.
    """
    if config.federation.spec.coordinator is None:
        name = config.federation.metadata.name
        raise LookupError(f"control: federation {name} has no coordinator; write spec.coordinator.address")
    return control_config(config, {"metrics": metrics, "model": model})
