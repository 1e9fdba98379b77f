"""What the request path needs from outside, and the frames of a call, the same over a handle and over the wire."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from serve_app.core.admission import NO_LIMITS, Ask, Left, Refused, Spent
from serve_app.core.breaker import Entry
from serve_app.core.known_targets import Known
from serve_app.core.language import LanguageGuess
from serve_app.core.reports import Trip
from serve_app.core.sessions import Held, History, Store, Turn
from serve_app.core.snapshots import Snapshot, Target
from serve_app.core.table import Table
from serve_app.core.trial import Tried, is_tried_on
from serve_app.outcomes import Outcome, Reason

Kind = Literal["chat", "completion"]
#: What came of a question about a language: it was answered with a code, or with none; or it was late, or failed.
Question = Literal["confirmed", "kept", "late", "failed"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose call it is and what is left of its limits, for a serving region that checks again. Never has a key.

    ``carry`` is what of the session moves with it, as JSON. ``tokens_wanted`` is the most it can come to.
    """

    tenant: str
    residency: frozenset[str]
    data_class: str | None
    traceparent: str | None
    session: str | None
    batch: bool
    tokens_wanted: int
    deadline_s: float
    queue_s: float
    hops: int = 1
    carry: bytes = b""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One attempt at one target. ``body`` is the OpenAI request as the engine shall see it.

    ``target``, ``release`` and ``enqueued_unix_s`` are stamped anew at each attempt: queue wait counts from there.
    ``max_tokens`` is the budget before the context is known; the agent never exceeds what the context leaves.
    ``queue_s`` bounds the wait from ``enqueued_unix_s`` until the engine schedules it.
    """

    request_id: str
    kind: Kind
    model: str
    body: dict[str, Any]
    stream: bool
    max_tokens: int
    priority: int
    target: str = ""
    release: str = ""
    enqueued_unix_s: float = 0.0
    queue_s: float = math.inf
    #: Only of a call that goes to another region.
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An error before the first token, as a reason of :data:`serve_app.outcomes.STATUS`."""

    reason: Reason
    message: str
    param: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The serving side has admitted the request: proof of life, not of progress."""

    target: str
    release: str


@dataclass(frozen=True, slots=True)
class Head:
    """With the first token, or instead of one: then ``failure`` is set and nothing but a Tail follows.

    ``queued``: the call had to wait for a replica, or for a place in the engine.
    """

    max_tokens: int | None = None
    failure: Failure | None = None
    queued: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """Ready bytes: SSE events or one JSON document. Never parsed again."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """How it ended. ``None`` is "not known": a call that never reached the engine has no queue wait."""

    outcome: Outcome
    finish_reason: str | None = None
    usage: Usage | None = None
    queue_wait_ms: float | None = None
    first_token_ms: float | None = None
    failure: Failure | None = None


Frame = Accepted | Head | Body | Tail
#: Frames that travel together, because nothing is waited for between them.
Packet = tuple[Frame, ...]


class Detector(Protocol):
    """The language of a text."""

    async def detect(self, text: str, session_language: str | None) -> LanguageGuess: ...


class Agents(Protocol):
    """Calls to targets. Closing the generator cancels the work within a second."""

    def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]: ...

    async def probe(self, app: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known of a session when a request of it comes. ``picks`` has the region that each agent was kept at.

    ``history`` is empty unless it was asked for. ``store`` says whether the region's store was asked: ``off`` knows
    only what this process remembers. ``held`` is the agent that it is with, where agents have a strength.
    """

    key: str
    language: str | None = None
    picks: Mapping[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
    store: Store = "off"
    held: Held | None = None


class Targets(Protocol):
    """What this Router knows of targets by itself, between two snapshots. ``entry`` is what ``begin`` answered."""

    def known(self, snapshot: Snapshot, now_s: float) -> Known: ...

    def begin(self, target: Target, now_s: float) -> Entry | None: ...

    def succeeded(self, target: Target, entry: Entry, now_s: float) -> None: ...

    def failed(self, target: Target, entry: Entry, reason: Reason, began_s: float, now_s: float) -> Trip | None: ...

    def left(self, target: Target, entry: Entry) -> None: ...

    def ended(self, target: Target) -> None: ...

    def spilled(self, agent: str, region: str, *, is_load: bool) -> None: ...

    def recover_s(self, targets: Iterable[Target], now_s: float) -> float | None: ...


class Sessions(Protocol):
    """What is remembered of a session; forgetting is always allowed. Asking takes a bounded time and never fails."""

    async def open(self, key: str, *, history: bool) -> Opened: ...

    async def keep_pick(self, opened: Opened, agent: str, region: str) -> Opened:
        """Keeps where an agent answers a session; what another Router kept since ``opened`` was read stands."""
        ...

    def remember(
        self, opened: Opened, language: str | None, turn: Turn | None = None, held: Held | None = None
    ) -> None:
        """Keeps what is new, some time after it has returned, and the session alive."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted ask, to be settled once, and what it left. ``decided_by`` is ``none`` where no limit applies."""

    id: str
    ask: Ask
    decided_by: Literal["region", "router", "none"]
    left: Left = NO_LIMITS


class Limits(Protocol):
    """Tenant limits and slots. Asking takes a bounded time and always has an answer."""

    async def admit(self, ask: Ask) -> Grant | Refused: ...

    def settle(self, grant: Grant, spent: Spent) -> None: ...

    def slot_free_s(self) -> float: ...


class Clock(Protocol):
    """``now_s`` is monotonic, ``unix_s`` is wall time, ``today`` an ISO date."""

    def now_s(self) -> float: ...

    def unix_s(self) -> float: ...

    def today(self) -> str: ...

    async def sleep(self, seconds: float) -> None: ...


class Journal(Protocol):
    """Where a finished request is recorded: metrics, one log line, and the last decisions for ``explain``."""

    def finished(self, record: RequestRecord) -> None: ...


@dataclass(slots=True)
class RequestRecord:
    """Everything that is told about one request afterwards. Filled as it goes, recorded once."""

    request_id: str
    kind: Kind
    traceparent: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    region: str | None = None
    session_id: str | None = None
    session_store: Store | None = None
    session_moved_from: str | None = None
    history_turns: int | None = None
    model: str | None = None
    stream: bool = False
    language: str | None = None
    script: str | None = None
    confidence: float | None = None
    language_source: str | None = None
    language_question: Question | None = None
    rule: str | None = None
    rule_reason: str | None = None
    agent: str | None = None
    template: str | None = None
    tried: str | None = None
    canary: bool | None = None
    canary_place: int | None = None
    canary_break: bool | None = None
    wanted_release: str | None = None
    budget: dict[str, Any] | None = None
    prompt_tokens_estimate: int | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    target: str | None = None
    release: str | None = None
    serving_region: str | None = None
    hops: int | None = None
    spilled: bool | None = None
    tripped: list[str] = field(default_factory=list)
    limits_by: str | None = None
    tokens_reserved: int | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    answer_language: str | None = None
    queued: bool | None = None
    queue_wait_ms: float | None = None
    first_token_ms: float | None = None
    wait_ms: float | None = None
    total_ms: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """One consistent view for one request: the table and the snapshot, read once.

    ``tried`` is a release that some users are on, with the table that it makes; ``before`` is the world of the others,
    set in theirs.
    """

    table: Table
    snapshot: Snapshot
    tried: Tried | None = None
    tried_table: Table | None = None
    before: World | None = None

    def of_user(self, place: int) -> World:
        """The world of who stands at this place: see :func:`serve_app.core.trial.user_hash`."""
        tried, table = self.tried, self.tried_table
        if tried is None or table is None or place in tried.broken or not is_tried_on(place, tried.percent):
            return self
        return World(table, self.snapshot, tried, table, before=self)
