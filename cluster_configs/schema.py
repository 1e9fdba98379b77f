"""The kinds of documents and their parts, in one place to import from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cluster_configs.fields import API_VERSION, Block, Document, Metadata
from cluster_configs.kind_agent import AgentPolicy, AgentSpec, Engine, Gpu, Storage, Timeouts
from cluster_configs.kind_federation import Coordinator, Federation, FederationSpec, Health, Http, Region
from cluster_configs.kind_rollout import Rollout, SmokeTest
from cluster_configs.kind_route_table import (
    Languages,
    Match,
    RouteTable,
    RouteTableSpec,
    RouteTarget,
    Rule,
    Scoring,
)
from cluster_configs.kind_template import PromptTemplate, TemplateMetadata, TemplateSpec
from cluster_configs.kind_tenant import Limits, Tenant, TenantKey, TenantSpec
from cluster_configs.scale_trigger import LOAD_WINDOW_S, ScaleTrigger, Scaling

#: Every kind that may be written, by its name.
KINDS: Final[Mapping[str, type[Document]]] = {
    "Federation": Federation,
    "AgentPolicy": AgentPolicy,
    "RouteTable": RouteTable,
    "Tenant": Tenant,
    "PromptTemplate": PromptTemplate,
}

__all__ = [
    "API_VERSION",
    "KINDS",
    "LOAD_WINDOW_S",
    "AgentPolicy",
    "AgentSpec",
    "Block",
    "Coordinator",
    "Document",
    "Engine",
    "Federation",
    "FederationSpec",
    "Gpu",
    "Health",
    "Http",
    "Languages",
    "Limits",
    "Match",
    "Metadata",
    "PromptTemplate",
    "Region",
    "Rollout",
    "RouteTable",
    "RouteTableSpec",
    "RouteTarget",
    "Rule",
    "ScaleTrigger",
    "Scaling",
    "Scoring",
    "SmokeTest",
    "Storage",
    "TemplateMetadata",
    "TemplateSpec",
    "Tenant",
    "TenantKey",
    "TenantSpec",
    "Timeouts",
]
