"""ASGI by hand, for what every call pays: headers, a bounded body, an answer that ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from serve_app.core.heads import TWICE_SAID, is_once
from serve_app.openai_request import MAX_BODY_BYTES, bad
from serve_app.outcomes import GrixError
from serve_app.relay import error_json
from serve_app.replies import Answer


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name.

    Raises:
        GrixError: ``bad_request`` for a header that decides something and is sent twice: two readers of it could
            take different ones.
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name in headers and is_once(name):
            raise bad(name, TWICE_SAID)
        headers[name] = _text(raw_value)
    return headers


def _text(raw: bytes) -> str:
    """A header's value: UTF-8, so that a session has the same name here and in ``metadata``, else one byte a letter."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


async def read_body(receive: Receive) -> bytes:
    """The body, never more of it in memory than is allowed.

    Raises:
        GrixError: ``body_too_large``.
        ClientDisconnect: when the client leaves before its body is here.
    """
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise GrixError("body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def respond(work: Coroutine[Any, Any, Answer], receive: Receive, send: Send) -> None:
    """Sends the answer; cancels the work behind it as soon as the client leaves, even before a first byte."""
    tasks = [asyncio.ensure_future(_send(work, send))]
    try:
        # A task cancelled before its first step never runs: a client that has left already would have no record.
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(_left(receive)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(work: Coroutine[Any, Any, Answer], send: Send) -> None:
    answer = await work
    raw = [(k.encode("latin-1"), v.encode("latin-1", "replace")) for k, v in answer.headers.items()]
    body = answer.body
    if isinstance(body, bytes):
        await send_whole(send, answer.status, raw, body)
        return
    async with aclosing(body):
        # The first bytes before the status: a generator that never started could not end its call when the
        # client leaves right here.
        first = await anext(body, b"")
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for data in body:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    told = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: GrixError) -> None:
    headers = {"content-type": "application/json", **error.headers()}
    raw = [(k.encode("latin-1"), v.encode("latin-1", "replace")) for k, v in headers.items()]
    await send_whole(send, error.status.http, raw, error_json(error))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
