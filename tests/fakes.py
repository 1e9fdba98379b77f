"""A whole HTTP surface over the fakes of :mod:`tests.path_fakes`, and an ASGI call driven by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from starlette.applications import Starlette

from serve_app.core import table
from serve_app.core.snapshots import Snapshot, local_snapshot
from serve_app.openai_api import Surface, build
from serve_app.ports import Accepted, Body, Failure, Frame, Head, RequestRecord, Tail, Usage
from tests.path_fakes import KEY, OPERATOR_KEY, Stage, a_table

Message = MutableMapping[str, Any]
Step = Frame | Exception | str

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


def refused(reason: str, *, retry_after_s: float | None = None) -> tuple[Step, ...]:
    """A target that admits a call and fails it before its first token."""
    failure = Failure(reason, "not now", None, retry_after_s)  # type: ignore[arg-type]
    return (Accepted("t", "r"), Head(failure=failure), Tail("failed", failure=failure))


def two_regions(made: table.Table | None = None) -> Snapshot:
    """The region's own targets and the same in ``cloud-b``, which is dearer and so comes second."""
    own = local_snapshot(made or a_table(), 1)
    there = tuple(replace(t, region="cloud-b", cloud="cloud-b", gpu_hour_usd=2.0) for t in own.targets)
    return replace(own, targets=own.targets + there)


@dataclass
class Site:
    """A stage with the HTTP surface on top of it."""

    stage: Stage = field(default_factory=Stage)
    health_key: str | None = None
    local: bool = True
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def app(self) -> Starlette:
        async def deep() -> dict[str, Any]:
            return {"local": self.local}

        async def metrics() -> bytes:
            return b"grix_up 1\n"

        async def find(request_id: str) -> dict[str, Any] | None:
            return self.kept.get(request_id)

        return build(Surface(self.stage.path, deep, metrics, find, 1_700_000_000, self.health_key))

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

    async def call(self, app: Starlette) -> None:
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
