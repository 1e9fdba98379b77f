"""Fakes behind the ports of the request path (scripted agents, a clock that moves only when told, a list as journal),
a whole HTTP surface over them, and an ASGI call driven by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from serve_app.admission import Admission
from serve_app.attempts import Attempts
from serve_app.core import language, table
from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.retry import RetryBudget
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Snapshot, Target, local_snapshot
from serve_app.core.tenants import KeyIndex, hash_key
from serve_app.edge.limits import LocalLimits
from serve_app.edge.local_sessions import LocalSessions
from serve_app.openai_api import Api, Surface, caller_of
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Failure, Frame, Head, RequestRecord, Sessions, Tail, Usage, World
from serve_app.replies import Answer
from serve_app.request_path import RequestPath
from tests.fake_tasks import FakeTaskPeers, FakeTasks

Message = MutableMapping[str, Any]
#: What a scripted target does next: gives a frame, raises, or (any text) hangs.
Step = Frame | Exception | str

KEY = "grix-test"
OPERATOR_KEY = "grix-operator"
GOOD: tuple[Step, ...] = (
    Accepted("t", "r"),
    Head(max_tokens=64),
    Body(b'{"ok":1}'),
    Tail("success", "stop", Usage(7, 3), 1.5, 4.5),
)
BEARER = {"authorization": f"Bearer {KEY}"}
OPERATOR = {"authorization": f"Bearer {OPERATOR_KEY}"}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
#: Two events and the end mark, as an engine streams them.
STREAMED: tuple[Step, ...] = (
    Accepted("t", "r"),
    Head(max_tokens=64),
    Body(b"data: 1\n\n"),
    Body(b"data: [DONE]\n\n"),
    Tail("success", "stop", Usage(7, 3), 1.5, 4.5),
)
CHAT = "/v1/chat/completions"


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
        scoring=default_weights(),
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

    scripts: list[tuple[Step, ...]]
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
    scripts: list[tuple[Step, ...]] = field(default_factory=lambda: [GOOD])
    detector: FakeDetector = field(default_factory=FakeDetector)
    clock: FakeClock = field(default_factory=FakeClock)
    journal: FakeJournal = field(default_factory=FakeJournal)
    budget: RetryBudget = field(default_factory=RetryBudget)
    snapshot: Snapshot | None = None
    sessions: Sessions | None = None

    def __post_init__(self) -> None:
        self.agents = FakeAgents(self.scripts)
        self.limits = LocalLimits(self.clock.now_s)
        local = LocalSessions(self.clock.now_s)
        self.breakers = RouterBreakers()
        self.targets = KnownTargets(self.breakers, lambda: None)
        world = World(self.table, self.snapshot or local_snapshot(self.table, 1))
        self.path = RequestPath(
            world=lambda: world,
            keys=lambda: KeyIndex.of(self.table.tenants),
            detector=self.detector,
            admission=Admission(lambda: self.limits, self.clock, lambda: 0.0),
            attempts=Attempts(self.agents, self.clock, self.budget, lambda: 0.0, self.targets),
            sessions=lambda: self.sessions or local,
            clock=self.clock,
            journal=self.journal,
        )

    async def run(self, raw: bytes, headers: dict[str, str] | None = None) -> Answer:
        """A chat request's answer, asked with ``headers`` or the usual key."""
        told = BEARER if headers is None else headers
        caller = caller_of(self.path, told.get("authorization"))
        return await self.path.run("chat", caller, raw, told, "r1")


def failed(reason: str, message: str = "no") -> GrixError:
    return GrixError(reason, message)  # type: ignore[arg-type]


def refused(reason: str, *, retry_after_s: float | None = None) -> tuple[Step, ...]:
    """A target that admits a call and fails it before its first token."""
    failure = Failure(reason, "not now", None, retry_after_s)  # type: ignore[arg-type]
    return (Accepted("t", "r"), Head(failure=failure), Tail("failed", failure=failure))


def two_regions(made: table.Table | None = None) -> Snapshot:
    """The region's own targets and the same in ``cloud-b``, which is dearer and so comes second; all are healthy."""
    own = local_snapshot(made or a_table(), 1)
    here = tuple(replace(t, health="healthy") for t in own.targets)
    there = tuple(replace(t, region="cloud-b", cloud="cloud-b", gpu_hour_usd=2.0) for t in here)
    return replace(own, targets=here + there)


@dataclass
class Site:
    """A stage with the HTTP surface on top of it."""

    stage: Stage = field(default_factory=Stage)
    health_key: str | None = None
    local: bool = True
    sees_callers: bool = True
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: FakeTasks = field(default_factory=FakeTasks)
    peers: FakeTaskPeers = field(default_factory=FakeTaskPeers)

    @property
    def app(self) -> Api:
        async def deep() -> dict[str, Any]:
            return {"local": self.local}

        async def metrics() -> bytes:
            return b"grix_up 1\n"

        async def find(request_id: str) -> dict[str, Any] | None:
            return self.kept.get(request_id)

        rest = (1_700_000_000, self.health_key, self.sees_callers)
        surface = Surface(self.stage.path, deep, metrics, find, self.tasks, self.peers, *rest)
        return Api(surface)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, peer: str = "10.0.0.9"
    ) -> httpx.Response:
        """One request from ``peer``; ``body`` is bytes or made JSON."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(peer, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://grix") as client:
            return await client.request(method, path, content=content, headers=BEARER if headers is None else headers)


@dataclass
class Caller:
    """An ASGI client by hand: sends a body, then leaves when told. ``on_send`` may hold or break a send."""

    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(BEARER))
    sent: list[Message] = field(default_factory=list)
    leaves: asyncio.Event = field(default_factory=asyncio.Event)
    on_send: Callable[[Message], Any] | None = None
    _told: bool = False

    def scope(self) -> dict[str, Any]:
        raw = [(k.encode(), v.encode()) for k, v in self.headers.items()]
        where = {"method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"", "root_path": ""}
        peers = {"client": ("10.0.0.9", 4711), "server": ("grix", 80)}
        return {"type": "http", "http_version": "1.1", "scheme": "http", "headers": raw, **where, **peers}

    async def receive(self) -> Message:
        if not self._told:
            self._told = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self.on_send is not None:
            await self.on_send(message)

    async def call(self, app: Api) -> None:
        await app(self.scope(), self.receive, self.send)


async def settle(until: Callable[[], bool], turns: int = 1000) -> None:
    """Gives other tasks turns until ``until`` holds; fails when it never does."""
    for _ in range(turns):
        if until():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@dataclass
class FakeMeter:
    """Numbers as they were given: name, sorted labels, value."""

    added: list[tuple[str, dict[str, str], float]] = field(default_factory=list)
    observed: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def add(self, name: str, labels: Any, value: float) -> None:
        self.added.append((name, dict(labels), value))

    def observe(self, name: str, labels: Any, value: float) -> None:
        self.observed.append((name, dict(labels), value))


def a_record(request_id: str = "r1", **changes: Any) -> RequestRecord:
    """A finished request with everything known that metrics need."""
    made = RequestRecord(
        request_id,
        "chat",
        tenant="acme",
        region="cloud-a",
        language="ja",
        agent="qwen-chat",
        attempts=[{"target": "a", "result": "started", "ms": 1.0}],
        limits_by="region",
        tokens_reserved=107,
        prompt_tokens=7,
        completion_tokens=3,
        finish_reason="stop",
        queue_wait_ms=1.5,
        first_token_ms=4.5,
        wait_ms=5.0,
        total_ms=9.0,
        outcome="success",
        status=200,
    )
    return replace(made, **changes)
