"""What stands before Serve's own HTTP code: bounded request heads, and no header that Serve would stumble over.

Serve loads :func:`middlewares` into every process that listens for HTTP (``ray_cluster`` names it in the environment).
Two things can only be done here. uvicorn keeps a request's head in memory however long it gets, before anybody has
shown a key. And Serve decodes some headers as UTF-8 before a Router sees the request: other bytes in them are a 500,
and what they say goes into Serve's logs and its choice of a replica.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serve_app.core.heads import REQUEST_ID_SAID, TWICE_SAID, is_once, is_request_id
from serve_app.outcomes import GrixError

#: Bytes of a head, of trailers, of a chunk's extensions: everything that is neither body nor the end of a head.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100
#: Serve routes by this one, however it is spelled; nothing of Grix is multiplexed.
_NOT_FOR_CLIENTS: Final = b"serve_multiplexed_model_id"
#: Serve decodes these.
_TEXT: Final = frozenset({b"x-session-id", b"x_session_id", b"traceparent", b"x-request-timeout-seconds"})
_TOO_LARGE: Final = GrixError("headers_too_large", f"The headers are larger than {MAX_HEAD_BYTES} bytes.")


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which ends a connection that sends on and on without getting anywhere."""

    _idle_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        self._idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        super().on_message_complete()

    def _refuse(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # An answer is under way on this connection: nothing may be written into it.
            self.transport.abort()
            return
        status, body = _TOO_LARGE.status.http, _body(_TOO_LARGE)
        head = f"HTTP/1.1 {status} Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class Guard:
    """ASGI middleware: refuses headers that could not stand in a log, drops the ones that steer Serve."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["headers"] = checked(scope["headers"])
        except GrixError as error:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_body(error)))]
            await send({"type": "http.response.start", "status": error.status.http, "headers": headers})
            await send({"type": "http.response.body", "body": _body(error)})
            return
        await self._app(scope, receive, send)


def checked(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers an application may see.

    Raises:
        GrixError: ``headers_too_large``, ``packed_body`` or ``bad_request``.
    """
    if len(headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in headers) > MAX_HEAD_BYTES:
        raise _TOO_LARGE
    kept = []
    seen = set()
    for name, value in headers:
        if name in seen and is_once(name.decode("latin-1")):
            raise _bad(name, TWICE_SAID)
        seen.add(name)
        if name == b"x-request-id" and not is_request_id(value.decode("latin-1")):
            raise _bad(name, REQUEST_ID_SAID)
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise GrixError("packed_body", "content-encoding: packed bodies are not taken; send the JSON as it is.")
        if name in _TEXT and not _is_plain(value):
            raise _bad(name, "must be text in UTF-8 without control characters.")
        if name.lower().replace(b"-", b"_") != _NOT_FOR_CLIENTS:
            kept.append((name, value))
    return kept


def _is_plain(value: bytes) -> bool:
    try:
        return value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _bad(name: bytes, message: str) -> GrixError:
    shown = name.decode("latin-1")
    return GrixError("bad_request", f"{shown}: {message}", param=shown)


def _body(error: GrixError) -> bytes:
    return json.dumps(error.envelope()).encode()


def middlewares() -> list[Any]:
    """Serve's callback, called in each process before its HTTP server is made."""
    auto.AutoHTTPProtocol = BoundedHttp
    return [Middleware(Guard)]
