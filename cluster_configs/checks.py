"""Contradictions between documents: what one names and another does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from cluster_configs.faults import Path, Problem, listed, nearest, shown
from cluster_configs.fields import Document
from cluster_configs.schema import AgentPolicy, Federation, RouteTable, Tenant


@dataclass(frozen=True, slots=True)
class Known:
    """What there is. Names count even when their document has a fault, so that it has no echo elsewhere.

    A kind without any document is ``None`` and nothing is checked against it: a single file can be looked at alone.
    """

    agents: Collection[str] | None = None
    templates: Collection[str] | None = None
    tenants: Collection[str] | None = None
    federation: Federation | None = None
    policies: dict[str, AgentPolicy] = field(default_factory=dict)


def _unknown(path: Path, what: str, name: str, known: Collection[str] | None) -> Iterator[Problem]:
    if known is not None and name not in known:
        names = sorted(known)
        message = f"there is no {what} {shown(name)}{nearest(name, names)}; known: {listed(names)}"
        yield Problem(path, message, (path,))


def across(document: Document, known: Known) -> Iterator[Problem]:
    """Problems of one document with the others, with paths from this document's root."""
    if isinstance(document, AgentPolicy):
        yield from _agent(document, known)
    elif isinstance(document, RouteTable):
        yield from _routes(document, known)
    elif isinstance(document, Tenant):
        yield from _tenant(document, known)
    elif isinstance(document, Federation):
        yield from _federation(document, known)


def _agent(policy: AgentPolicy, known: Known) -> Iterator[Problem]:
    spec = policy.spec
    if spec.engine_of is not None and spec.engine_of != policy.metadata.name:
        path: Path = ("spec", "engineOf")
        yield from _unknown(path, "agent", spec.engine_of, known.agents)
        owner = known.policies.get(spec.engine_of)
        if owner is not None and owner.spec.engine_of is not None:
            yield Problem(
                path,
                f"'{spec.engine_of}' uses the engine of {owner.spec.engine_of} itself; "
                f"write engineOf: {owner.spec.engine_of}",
                (path,),
            )
        elif owner is not None and spec.max_tokens_default >= owner.spec.engine.max_model_len:
            yield Problem(
                ("spec", "maxTokensDefault"),
                f"{spec.max_tokens_default} leaves no room for a prompt in maxModelLen "
                f"{owner.spec.engine.max_model_len} of {spec.engine_of}; allowed: less than that",
                (path, ("spec", "maxTokensDefault")),
            )
    if known.federation is None:
        return
    regions = known.federation.spec.regions
    facts: dict[str, set[str]] = {
        "cloud": {r.cloud for r in regions},
        "region": {r.name for r in regions},
        "location": {r.location for r in regions},
        "role": {r.role for r in regions},
    }
    selector_ok = True
    for key, values in spec.cluster_selector.items():
        for i, value in enumerate(values):
            found = list(_unknown(("spec", "clusterSelector", key, i), key, value, facts[key]))
            selector_ok = selector_ok and not found
            yield from found
    chosen = [r for r in regions if spec.selects(cloud=r.cloud, region=r.name, location=r.location, role=r.role)]
    if not chosen and selector_ok:
        yield Problem(
            ("spec", "clusterSelector"),
            "no region has all of these labels, so nothing can carry the agent; allowed: labels of one region",
            (("spec", "clusterSelector"),),
        )
    for code, cloud in spec.language_affinity.items():
        path = ("spec", "languageAffinity", code)
        found = list(_unknown(path, "cloud", cloud, facts["cloud"]))
        yield from found
        if not found and chosen and cloud not in {r.cloud for r in chosen}:
            yield Problem(
                path,
                f"'{cloud}' is not selected by clusterSelector, so the agent is never there; "
                f"allowed: {listed(sorted({r.cloud for r in chosen}))}",
                (path, ("spec", "clusterSelector")),
            )


def _federation(federation: Federation, known: Known) -> Iterator[Problem]:
    for i, region in enumerate(federation.spec.regions):
        for name, workers in ({} if region.tasks is None else region.tasks.classes()).items():
            path: Path = ("spec", "regions", i, "tasks", name, "agent")
            yield from _unknown(path, "agent", workers.agent, known.agents)


def _routes(table: RouteTable, known: Known) -> Iterator[Problem]:
    if table.spec.languages.confirm is not None:
        yield from _confirming(table.spec.languages.confirm, known)
    for i, rule in enumerate(table.spec.rules):
        target: Path = ("spec", "rules", i, "target")
        yield from _unknown((*target, "agent"), "agent", rule.target.agent, known.agents)
        if rule.target.lang_template is not None:
            yield from _unknown((*target, "langTemplate"), "template", rule.target.lang_template, known.templates)
        if rule.match.tenant is not None:
            yield from _unknown(("spec", "rules", i, "match", "tenant"), "tenant", rule.match.tenant, known.tenants)
        if rule.target.preferred_cloud is not None and known.federation is not None:
            yield from _preferred(rule.target.agent, rule.target.preferred_cloud, target, known)


def _confirming(agent: str, known: Known) -> Iterator[Problem]:
    path: Path = ("spec", "languages", "confirm")
    yield from _unknown(path, "agent", agent, known.agents)
    policy = known.policies.get(agent)
    owner = known.policies.get(policy.spec.engine_of) if policy and policy.spec.engine_of else policy
    if policy is None or owner is None or known.federation is None:
        return
    own, of_engine = (
        {
            r.name
            for r in known.federation.spec.regions
            if p.spec.selects(cloud=r.cloud, region=r.name, location=r.location, role=r.role)
        }
        for p in (policy, owner)
    )
    # A selector that chooses nothing is a fault of its own document.
    if own and of_engine and own.isdisjoint(of_engine):
        yield Problem(
            path,
            f"no region carries the agent {agent}, so it is never asked: its clusterSelector chooses "
            f"{listed(sorted(own))}, that of its engine {owner.metadata.name} {listed(sorted(of_engine))}; "
            f"allowed: an agent that a region carries",
            (path,),
        )


def _preferred(agent: str, cloud: str, target: Path, known: Known) -> Iterator[Problem]:
    assert known.federation is not None
    path = (*target, "preferredCloud")
    regions = known.federation.spec.regions
    found = list(_unknown(path, "cloud", cloud, {r.cloud for r in regions}))
    yield from found
    policy = known.policies.get(agent)
    owner = known.policies.get(policy.spec.engine_of) if policy and policy.spec.engine_of else policy
    if found or owner is None:
        return
    carried = {
        r.cloud for r in regions if owner.spec.selects(cloud=r.cloud, region=r.name, location=r.location, role=r.role)
    }
    if carried and cloud not in carried:
        yield Problem(
            path,
            f"'{cloud}' never carries the agent {agent}, whose clusterSelector leaves it out; "
            f"allowed: {listed(sorted(carried))}",
            (path, (*target, "agent")),
        )


def _tenant(tenant: Tenant, known: Known) -> Iterator[Problem]:
    for i, name in enumerate(tenant.spec.agents or ()):
        yield from _unknown(("spec", "agents", i), "agent", name, known.agents)
    if known.federation is not None:
        zones = sorted({zone for r in known.federation.spec.regions for zone in r.residency})
        for i, zone in enumerate(tenant.spec.residency):
            if zone != "any" and zone not in zones:
                path: Path = ("spec", "residency", i)
                near = nearest(zone, zones)
                yield Problem(
                    path,
                    f"no region lies in the zone {shown(zone)}{near}; known: {listed([*zones, 'any'])}",
                    (path,),
                )
