"""The whole configuration, and the part of it that travels to Routers as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster_configs.assemble import assemble
from cluster_configs.faults import ConfigError, Fault, listed
from cluster_configs.fields import Document
from cluster_configs.schema import AgentPolicy, Federation, PromptTemplate, RouteTable, Tenant
from cluster_configs.yaml_source import Source

_KEYS: Final = ("agents", "routes", "tenants", "templates")
_FILE: Final = "(bundle)"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a Router needs to decide: agents, templates and tenants by name, and the one route table."""

    agents: Mapping[str, AgentPolicy]
    routes: RouteTable
    tenants: Mapping[str, Tenant]
    templates: Mapping[str, PromptTemplate]


@dataclass(frozen=True, slots=True)
class Config(Bundle):
    """A bundle with the federation it serves. Every mapping is by ``metadata.name``."""

    federation: Federation


def engine_owner(agents: Mapping[str, AgentPolicy], name: str) -> AgentPolicy:
    """The policy whose engine the agent ``name`` uses: its own, or the one its ``engineOf`` names."""
    policy = agents[name]
    return policy if policy.spec.engine_of is None else agents[policy.spec.engine_of]


def languages_named(config: Bundle) -> frozenset[str]:
    """Languages that rules match or templates speak: one without a ratio is a language too."""
    matched = {code for rule in config.routes.spec.rules for code in rule.match.lang or ()}
    return frozenset(matched | config.templates.keys()) - {"und"}


def to_document(document: Document) -> dict[str, Any]:
    """One document as plain JSON with the keys of YAML, every default written out."""
    return document.model_dump(mode="json", by_alias=True, exclude_none=True)


def to_documents(config: Config) -> list[dict[str, Any]]:
    """All documents as plain JSON, by kind and name: what ``load_paths`` reads back to an equal Config."""
    kinds: list[Mapping[str, Document]] = [config.agents, config.tenants, config.templates]
    rest = [to_document(kind[name]) for kind in kinds for name in sorted(kind)]
    return [to_document(config.federation), to_document(config.routes), *rest]


def bundle(config: Bundle) -> dict[str, Any]:
    """Plain JSON of agents, routes, tenants and templates; :func:`from_bundle` is its exact inverse."""
    return {
        "agents": [to_document(config.agents[name]) for name in sorted(config.agents)],
        "routes": to_document(config.routes),
        "tenants": [to_document(config.tenants[name]) for name in sorted(config.tenants)],
        "templates": [to_document(config.templates[name]) for name in sorted(config.templates)],
    }


def from_bundle(data: Mapping[str, Any]) -> Bundle:
    """The bundle of :func:`bundle`'s JSON, checked like documents from files.

    Raises:
        ConfigError: keys missing or unknown, or faults in documents.
    """
    if set(data) != set(_KEYS):
        said = f"has {listed(sorted(map(str, data)))}; allowed: exactly {listed(_KEYS)}"
        raise ConfigError([Fault(_FILE, 1, "(bundle)", said)])
    documents: list[Any] = []
    for key in _KEYS:
        part = data[key]
        if key != "routes" and not isinstance(part, list | tuple):
            raise ConfigError([Fault(_FILE, 1, key, "is not a list; allowed: a list of documents")])
        documents.extend([part] if key == "routes" else part)
    assembled = assemble([Source(_FILE, i + 1, value) for i, value in enumerate(documents)])
    faults = list(assembled.faults)
    if not faults and not any(isinstance(d, RouteTable) for d in assembled.documents):
        faults.append(Fault(_FILE, 1, "routes", "is no RouteTable; allowed: a document of kind RouteTable"))
    if faults:
        raise ConfigError(faults)
    return bundle_of(assembled.documents)


def bundle_of(documents: tuple[Document, ...]) -> Bundle:
    """Documents without faults, one RouteTable among them, sorted into their places."""
    return Bundle(
        agents={d.metadata.name: d for d in documents if isinstance(d, AgentPolicy)},
        routes=next(d for d in documents if isinstance(d, RouteTable)),
        tenants={d.metadata.name: d for d in documents if isinstance(d, Tenant)},
        templates={d.metadata.name: d for d in documents if isinstance(d, PromptTemplate)},
    )
