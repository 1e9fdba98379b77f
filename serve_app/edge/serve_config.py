"""A region's Serve config, from documents: what ``grix render`` prints and ``grix up`` deploys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.bundle import Config, bundle, engine_owner, languages_named
from serve_app.core.names import engine_digest
from serve_app.edge.agent_app import agent_app
from serve_app.edge.federation_apps import THIN_CPUS, control_config, region_app
from serve_app.edge.model_files import as_model_path, hub_revision, model_digest
from serve_app.edge.tasks_app import tasks_apps

#: Router and gateway do their own admission; Serve's default of 5 would be a hidden one.
INGRESS_ONGOING: Final = 10_000
#: Requests that may wait in the proxy while every Router is full; by default there is no bound.
INGRESS_QUEUED: Final = 1_000


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
    return {**facts, "engine_digest": engine_digest(model_digest(model_path), engine)}


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
        "taskRegions": {r.name: list(r.residency) for r in others if r.tasks and r.accepts_spill and r.gateway},
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


def priorities_of(config: Config, agents: Mapping[str, schema.AgentPolicy]) -> dict[str, int]:
    """How important each engine is, by the agent that owns it: as much as the most important agent that uses it."""
    found: dict[str, int] = {}
    for name, agent in agents.items():
        owner = engine_owner(config.agents, name).metadata.name
        found[owner] = max(agent.spec.priority, found.get(owner, 0))
    return found


def use_redis(rendered: dict[str, Any], url: str, password_file: str, *, log: bool) -> None:
    """Names a Redis in a rendered config whose Federation names none: the one that starts with the region.

    ``log``: it writes down what it holds.
    """
    redis = {"url": url, "passwordFile": password_file}
    for app in rendered["applications"]:
        for deployment in app["deployments"]:
            user_config = deployment["user_config"]
            if "region" in user_config:
                user_config["region"] = {**user_config["region"], "redis": redis}
            if "again" in user_config:
                user_config["again"]["redis"] = {**redis, "log": log}


def use_task_secret(rendered: dict[str, Any], file: str) -> None:
    """Names a secret in a rendered config whose region has tasks and names none; the region may get tasks later."""
    for app in rendered["applications"]:
        for deployment in app["deployments"]:
            user_config = deployment["user_config"]
            tasks = user_config.get("region", {}).get("tasks")
            if tasks is not None:
                user_config["region"] = {**user_config["region"], "tasks": {"secretFile": file, **tasks}}
            if "again" in user_config:
                user_config["again"]["task_secret"] = file


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
    priorities = priorities_of(config, agents)
    apps = [
        _router_app(config, region, user_config, total_s),
        *(agent_app(owners[n], args[n], region.name, ping_s, priorities[n]) for n in owners),
        *tasks_apps(region),
    ]
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
