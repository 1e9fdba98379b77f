"""What a Router knows about agents, rules, templates, languages and tenants: immutable, replaced whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serve_app.core.tasks import TaskClass

Budget = Literal["as-is", "english"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one request in seconds: waiting for a slot, first byte, and everything."""

    queue_s: float = 10.0
    first_byte_s: float = 30.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent as a Router sees it. ``engine_agent`` is itself, or the agent whose engine it borrows.

    An agent that only other regions run has no ``app``, and no digest or release of this region.
    """

    name: str
    engine_agent: str
    app: str
    engine_digest: str
    release: str
    duty: str
    max_model_len: int
    slots: int
    min_replicas: int
    max_queue_ms: float
    priority: int
    max_tokens_default: int
    timeouts: Timeouts
    #: A session leaves its target when more than this many wait there.
    handover_queue: int = 5
    #: Against other agents that have one; ``None``: it is neither stronger nor weaker than any.
    strength: int | None = None
    language_affinity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One routing rule; ``None`` in a match field matches everything."""

    name: str
    priority: int
    agent: str
    languages: frozenset[str] | None = None
    intent: str | None = None
    tenant: str | None = None
    prompt_tokens_above: int | None = None
    template: str | None = None
    preferred_cloud: str | None = None
    budget: Budget = "as-is"


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt template: system text for one language, with its version and digest."""

    language: str
    version: str
    digest: str
    system: str
    register: str = "plain"


@dataclass(frozen=True, slots=True)
class Languages:
    """The matrix's languages: tokens against English, the confidence floor, and codes that mean the same.

    ``named`` are languages that a rule or a template names; they are told apart too, with a ratio or without.
    ``confirm`` is the agent that is asked about a short text in doubt; ``None``: nobody is.
    """

    token_ratio: Mapping[str, float]
    min_confidence: float
    equivalent: tuple[frozenset[str], ...] = ()
    named: frozenset[str] = frozenset()
    confirm: str | None = None

    @property
    def codes(self) -> frozenset[str]:
        """Every language a request can be in."""
        return self.named | self.token_ratio.keys()


@dataclass(frozen=True, slots=True)
class TenantKey:
    """An API key at rest: its id, its SHA-256 and the last day it is valid (ISO date), if any."""

    id: str
    sha256: str
    expires: str | None = None


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may use in a region; ``None``: no limit of that kind."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may call, where its data may be, and which agents it may use (``None``: all)."""

    name: str
    keys: tuple[TenantKey, ...]
    residency: frozenset[str]
    priority: int = 100
    budget: Budget = "as-is"
    agents: frozenset[str] | None = None
    operator: bool = False
    limits: TenantLimits = field(default_factory=TenantLimits)


@dataclass(frozen=True, slots=True)
class Region:
    """This region's facts, as far as choosing needs them."""

    name: str
    cloud: str
    residency: frozenset[str] = frozenset()
    gpu_hour_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What nobody may take alone: the share of batch work, and the slots of one trace or session."""

    batch_share: float = 0.5
    batch_priority_below: int = 50
    slots_per_root: int = 16


@dataclass(frozen=True, slots=True)
class Table:
    """Everything a Router decides from, apart from live load. Rules are in matching order.

    ``scoring`` has the weight of each of ``serve_app.core.scorers.SCORERS``.
    """

    region: Region
    agents: Mapping[str, Agent]
    rules: tuple[Rule, ...]
    templates: Mapping[str, Template]
    languages: Languages
    scoring: Mapping[str, float]
    tenants: tuple[Tenant, ...]
    open_access: bool = False
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    #: Who works at tasks, by class; nobody where the region takes none.
    task_agents: Mapping[TaskClass, str] = field(default_factory=dict)
    #: Other regions that take tasks of this one, with their zones, in the order of the federation.
    task_regions: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def own_agents(self) -> Mapping[str, Agent]:
        """The agents that this region runs itself."""
        return {name: agent for name, agent in self.agents.items() if agent.app}
