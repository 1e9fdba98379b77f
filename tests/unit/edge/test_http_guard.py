"""The guard before Serve's HTTP code, behind a real uvicorn: heads are bounded, odd headers refused."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import auto

from serve_app.edge import http_guard, ray_cluster
from serve_app.edge.http_guard import MAX_HEAD_BYTES, MAX_HEADERS, Guard, checked
from serve_app.outcomes import GrixError

NEVER = b"GET / HTTP/1.1\r\nhost: x\r\nx-long: "


class Echo:
    """Answers with the names of the headers it saw and the size of the body."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        body = json.dumps({"size": size, "headers": [n.decode() for n, _ in scope["headers"]]}).encode()
        head = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a uvicorn as Serve makes one: the protocol that ``auto`` names, the middleware around the app."""
    monkeypatch.setattr(auto, "AutoHTTPProtocol", auto.AutoHTTPProtocol)  # put back at the end
    (middleware,) = http_guard.middlewares()
    assert middleware.cls is Guard
    config = uvicorn.Config(Guard(Echo()), host="127.0.0.1", port=0, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def asked(port: int, *parts: bytes) -> bytes:
    """Everything the server says to these bytes until it closes, or has answered once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            try:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
            except ConnectionError:
                pass
            told = b""
            while b"\r\n\r\n" not in told or not told.endswith(b"}"):
                data = await reader.read(65536)
                if not data:
                    break
                told += data
            return told
    except ConnectionError:
        return b""
    finally:
        writer.close()


def status_of(told: bytes) -> int:
    return int(told.split(b" ", 2)[1])


async def test_an_ordinary_request_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as port:
        body = b"x" * 500_000
        head = b"POST / HTTP/1.1\r\nhost: x\r\nx-request-id: a-1\r\ncontent-length: 500000\r\n\r\n"
        told = await asked(port, head, *[body[i : i + 1000] for i in range(0, 500_000, 1000)])
        assert status_of(told) == 200 and b'"size": 500000' in told


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(NEVER, id="one header's value"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\n", id="a header's name"),
        pytest.param(b"GET /", id="the path"),
    ],
)
async def test_a_head_without_end_is_cut(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    async with served(monkeypatch) as port:
        told = await asked(port, head, *[b"a" * 10_000] * 400)
        # A client that is still sending may see the reset before the words.
        assert told == b"" or status_of(told) in (400, 431)
        assert status_of(await asked(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")) == 200


async def test_many_headers_without_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as port:
        told = await asked(port, b"GET / HTTP/1.1\r\n", *[b"x-a: 1\r\n" * 1000] * 400)
        assert told == b"" or status_of(told) == 431


async def test_what_ends_a_chunked_body_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
        for tail in (b"0\r\nx-trailer: ", b"1;x="):
            told = await asked(port, head + tail, *[b"a" * 10_000] * 400)
            assert told == b"" or status_of(told) in (400, 431)
        assert status_of(await asked(port, head + b"0\r\n\r\n")) == 200


async def test_a_head_that_ends_but_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as port:
        for head in (NEVER + b"a" * MAX_HEAD_BYTES, b"GET / HTTP/1.1" + b"\r\na: b" * (MAX_HEADERS + 1)):
            told = await asked(port, head + b"\r\n\r\n")
            assert status_of(told) == 431 and json.loads(told.partition(b"\r\n\r\n")[2])["error"]["param"] is None


async def test_keep_alive_counts_each_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(monkeypatch) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            writer.write(NEVER + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert head.startswith(b"HTTP/1.1 200") and await reader.readexactly(length)
        writer.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-request-id", b"\xff"),
        (b"x-request-id", b"a b"),
        (b"x-request-id", b""),
        (b"x-request-id", "\u202eevil".encode()),
        (b"x-request-id", b"\x1b[31m"),
        (b"x-request-id", b"a" * 129),
        (b"x-session-id", b"\x80"),
        (b"x_session_id", b"\x9b31m"),
        (b"traceparent", b"\xfe"),
        (b"x-session-id", "a\u2028b".encode()),
    ],
)
def test_what_serve_would_stumble_over_is_refused_by_name(name: bytes, value: bytes) -> None:
    with pytest.raises(GrixError) as refused:
        checked([(b"host", b"x"), (name, value)])
    assert (refused.value.reason, refused.value.param) == ("bad_request", name.decode())
    assert value.decode("latin-1") not in refused.value.message or not value


@pytest.mark.parametrize("name", [b"x-request-id", b"authorization", b"host", b"content-type", b"x-grix-history"])
def test_what_decides_something_is_sent_once(name: bytes) -> None:
    with pytest.raises(GrixError, match="more than once"):
        checked([(name, b"identity"), (b"accept", b"*"), (name, b"identity")])
    assert len(checked([(b"accept", b"a"), (b"accept", b"b")])) == 2
    # Each of two proxies on the way adds its own.
    assert len(checked([(b"x-forwarded-proto", b"https"), (b"x-forwarded-proto", b"http")])) == 2


@pytest.mark.parametrize("encoding", [b"gzip", b"identity, gzip", b"GZIP", b"br", b"x", b""])
def test_a_packed_body_is_refused_before_it_is_read(encoding: bytes) -> None:
    with pytest.raises(GrixError) as refused:
        checked([(b"content-encoding", encoding)])
    assert (refused.value.reason, refused.value.status.http) == ("packed_body", 415)
    assert checked([(b"content-encoding", b" Identity ")]) == [(b"content-encoding", b" Identity ")]


@pytest.mark.parametrize("name", [b"serve_multiplexed_model_id", b"serve-multiplexed-model-id"])
def test_a_client_does_not_steer_serve(name: bytes) -> None:
    assert checked([(name, b"m"), (b"user-agent", b"\xe9")]) == [(b"user-agent", b"\xe9")]


def test_text_of_any_language_may_name_a_session() -> None:
    headers = [(b"x-session-id", "会話 1".encode()), (b"x-request-id", b"a.b_c:d-9")]
    assert checked(headers) == headers


def test_every_cluster_loads_the_guard() -> None:
    cluster = ray_cluster.Cluster(20000, Path("/secret/token"), Path("/tmp/x"), 4)
    module, _, name = ray_cluster.environment(cluster, {})["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].partition(":")
    assert getattr(importlib.import_module(module), name) is http_guard.middlewares
