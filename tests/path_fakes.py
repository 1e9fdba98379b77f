"""Fakes behind the ports of the request path: scripted agents, a clock that moves only when told, a list as journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from serve_app.attempts import Attempts
from serve_app.core import language, table
from serve_app.core.retry import RetryBudget
from serve_app.core.snapshots import Snapshot, Target, local_snapshot
from serve_app.core.tenants import KeyIndex, hash_key
from serve_app.edge.session_memory import SessionMemory
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Frame, Head, RequestRecord, Tail, Usage, World
from serve_app.request_path import RequestPath

KEY = "grix-test"
OPERATOR_KEY = "grix-operator"
GOOD: tuple[Frame | Exception | str, ...] = (
    Accepted("t", "r"),
    Head(max_tokens=64),
    Body(b'{"ok":1}'),
    Tail("success", "stop", Usage(7, 3), 1.5, 4.5),
)


def agent(name: str, **changes: object) -> table.Agent:
    made = table.Agent(
        name=name,
        engine_agent=name,
        app=f"{name}--12345678",
        engine_digest="e" * 64,
        release="abcdef123456" + "0" * 52,
        duty="chat",
        max_model_len=1000,
        slots=4,
        min_replicas=1,
        max_queue_ms=250,
        priority=100,
        max_tokens_default=100,
        timeouts=table.Timeouts(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def a_table(**changes: object) -> table.Table:
    made = table.Table(
        region=table.Region("cloud-a", "cloud-a", frozenset({"sg"}), 1.0),
        agents={"qwen-chat": agent("qwen-chat"), "qwen-doc": agent("qwen-doc")},
        rules=(
            table.Rule("ja-service", 10, "qwen-chat", frozenset({"ja"}), "customer_service", template="ja"),
            table.Rule("long-doc", 5, "qwen-doc", prompt_tokens_above=400),
            table.Rule("fallback", 0, "qwen-chat", template="en"),
        ),
        templates={
            "en": table.Template("en", "1", "d1", "Be kind."),
            "ja": table.Template("ja", "2", "d2", "丁寧に。", "honorific"),
        },
        languages=table.Languages({"en": 1.0, "ja": 1.6, "id": 1.7, "th": 2.9}, 0.5, (frozenset({"id", "ms"}),)),
        scoring=table.Scoring(),
        tenants=(
            table.Tenant("acme", (table.TenantKey("k1", hash_key(KEY)),), frozenset({"any"})),
            table.Tenant("ops", (table.TenantKey("k1", hash_key(OPERATOR_KEY)),), frozenset({"any"}), operator=True),
        ),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@dataclass
class FakeClock:
    """Moves only by ``sleep`` and by hand."""

    time_s: float = 100.0
    slept_s: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1_800_000_000.0 + self.time_s

    def today(self) -> str:
        return "2026-11-30"

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.time_s += seconds


@dataclass
class FakeAgents:
    """Plays one script a call, the last one again and again. A script step is a frame, an error, or ``hang``."""

    scripts: list[tuple[Frame | Exception | str, ...]]
    calls: list[tuple[Target, AgentCall]] = field(default_factory=list)
    closed: int = 0

    async def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        script = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        self.calls.append((target, call))
        try:
            for step in script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, str):
                    await asyncio.Event().wait()
                else:
                    yield step
        finally:
            self.closed += 1

    async def probe(self, app: str) -> bool:
        return True


@dataclass
class FakeDetector:
    """Says what it is told to say, or fails."""

    guess: language.LanguageGuess | Exception = field(
        default_factory=lambda: language.LanguageGuess("en", "Latn", 0.9, "model", "en")
    )
    texts: list[str] = field(default_factory=list)

    async def detect(self, text: str, session_language: str | None) -> language.LanguageGuess:
        self.texts.append(text)
        if isinstance(self.guess, Exception):
            raise self.guess
        return self.guess


@dataclass
class FakeJournal:
    records: list[RequestRecord] = field(default_factory=list)

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)


@dataclass
class Stage:
    """A request path with everything around it faked."""

    table: table.Table = field(default_factory=a_table)
    scripts: list[tuple[Frame | Exception | str, ...]] = field(default_factory=lambda: [GOOD])
    detector: FakeDetector = field(default_factory=FakeDetector)
    clock: FakeClock = field(default_factory=FakeClock)
    journal: FakeJournal = field(default_factory=FakeJournal)
    budget: RetryBudget = field(default_factory=RetryBudget)
    snapshot: Snapshot | None = None

    def __post_init__(self) -> None:
        self.agents = FakeAgents(self.scripts)
        world = World(self.table, self.snapshot or local_snapshot(self.table, 1))
        self.path = RequestPath(
            world=lambda: world,
            keys=lambda: KeyIndex.of(self.table.tenants),
            detector=self.detector,
            attempts=Attempts(self.agents, self.clock, self.budget, lambda: 0.0),
            sessions=SessionMemory(),
            clock=self.clock,
            journal=self.journal,
        )


def failed(reason: str, message: str = "no") -> GrixError:
    return GrixError(reason, message)  # type: ignore[arg-type]
