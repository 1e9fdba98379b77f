"""From documents to the table that Routers decide from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cluster_configs import schema
from cluster_configs.bundle import Bundle, engine_owner, from_bundle, languages_named
from serve_app.core import table as core
from serve_app.core.names import app_name, release_digest


def table_of(user_config: Mapping[str, Any]) -> core.Table:
    """The table of a Router's user_config: ``region``, ``engines`` (engine digest by agent), ``documents``.

    ``elsewhere`` names agents that only other regions run: a request for one may enter here all the same.
    ``taskRegions`` has the residency of other regions that take tasks.
    """
    bundle = from_bundle(user_config["documents"])
    engines: Mapping[str, str] = user_config["engines"]
    known = [*engines, *user_config.get("elsewhere", ())]
    region = schema.Region.model_validate(user_config["region"])
    routes = bundle.routes.spec
    classes = {} if region.tasks is None else region.tasks.classes()
    return core.Table(
        region=core.Region(region.name, region.cloud, frozenset(region.residency), region.gpu_hour_usd),
        agents={name: _agent(bundle, name, engines.get(name, "")) for name in known},
        rules=tuple(_rule(r) for r in routes.ordered if r.target.agent in known),
        templates={
            code: core.Template(code, t.spec.version, t.digest, t.spec.system, t.spec.register_)
            for code, t in bundle.templates.items()
        },
        languages=core.Languages(
            token_ratio=dict(routes.languages.token_ratio),
            min_confidence=routes.languages.min_confidence,
            equivalent=tuple(frozenset(group) for group in routes.languages.equivalent),
            named=languages_named(bundle),
            confirm=routes.languages.confirm,
        ),
        scoring=routes.scoring.model_dump(),
        tenants=tuple(_tenant(t) for t in bundle.tenants.values()),
        open_access=bool(user_config.get("openAccess", False)),
        admission=core.AdmissionRules(**region.admission.model_dump()),
        task_agents={name: w.agent for name, w in classes.items() if w.agent in known},
        task_regions={name: frozenset(zones) for name, zones in user_config.get("taskRegions", {}).items()},
    )


def table_with(user_config: Mapping[str, Any], data: str) -> core.Table:
    """The table of a Router's user_config with other templates and routes: ``data`` is JSON of these documents.

    Raises:
        ConfigError, ValueError: for documents that are none, or that do not fit the agents here.
    """
    documents = json.loads(data)
    (routes,) = (d for d in documents if d["kind"] == "RouteTable")
    templates = [d for d in documents if d["kind"] == "PromptTemplate"]
    other = {**user_config["documents"], "routes": routes, "templates": templates}
    return table_of({**user_config, "documents": other})


def _agent(bundle: Bundle, name: str, engine_digest: str) -> core.Agent:
    spec = bundle.agents[name].spec
    owner = engine_owner(bundle.agents, name)
    engine = owner.spec.engine
    templates = {code: t.digest for code, t in bundle.templates.items()}
    named: list[Mapping[str, Any]] = [
        r.model_dump(mode="json", by_alias=True) for r in bundle.routes.spec.ordered if r.target.agent == name
    ]
    return core.Agent(
        name=name,
        engine_agent=owner.metadata.name,
        app=app_name(owner.metadata.name, engine_digest) if engine_digest else "",
        engine_digest=engine_digest,
        release=release_digest(engine_digest, templates, named) if engine_digest else "",
        duty=spec.duty,
        max_model_len=engine.max_model_len,
        slots=engine.max_num_seqs,
        min_replicas=owner.spec.min_replicas,
        max_queue_ms=spec.max_queue_ms,
        priority=spec.priority,
        max_tokens_default=spec.max_tokens_default,
        timeouts=core.Timeouts(spec.timeouts.queue_s, spec.timeouts.first_byte_s, spec.timeouts.total_s),
        handover_queue=spec.handover_queue,
        strength=spec.strength,
        language_affinity=dict(spec.language_affinity),
    )


def _rule(rule: schema.Rule) -> core.Rule:
    return core.Rule(
        name=rule.name,
        priority=rule.priority,
        agent=rule.target.agent,
        languages=None if rule.match.lang is None else frozenset(rule.match.lang),
        intent=rule.match.intent,
        tenant=rule.match.tenant,
        prompt_tokens_above=rule.match.prompt_tokens_above,
        template=rule.target.lang_template,
        preferred_cloud=rule.target.preferred_cloud,
        budget=rule.target.budget,
    )


def _tenant(tenant: schema.Tenant) -> core.Tenant:
    spec = tenant.spec
    return core.Tenant(
        name=tenant.metadata.name,
        keys=tuple(core.TenantKey(k.id, k.sha256, k.expires.isoformat() if k.expires else None) for k in spec.keys),
        residency=frozenset(spec.residency),
        priority=spec.priority,
        budget="english" if spec.budget == "english" else "as-is",
        agents=None if spec.agents is None else frozenset(spec.agents),
        operator=spec.role == "operator",
        limits=core.TenantLimits() if spec.limits is None else core.TenantLimits(**spec.limits.model_dump()),
    )
