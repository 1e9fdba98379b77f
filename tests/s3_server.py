"""An S3 server over real HTTP on a port of this machine, that counts what it sends and lies where it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "models"
ACCESS_KEY = "AKIAGRIXTESTACCESS01"
SECRET_KEY = "grix-secret-key-of-the-test-0123456789"

#: Answers a request instead of the server, or gives ``None`` to let the server answer.
Lie = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes] | None]


@dataclass
class S3Server:
    """``asked`` has (method, key, range) of each request, ``sent_bytes`` what went out in bodies of GETs, by key."""

    url: str
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    lie: Lie | None = None

    @property
    def total_sent_bytes(self) -> int:
        return sum(self.sent_bytes.values())

    def forget(self) -> None:
        """What was asked and sent so far."""
        self.asked.clear()
        self.sent_bytes.clear()

    def environment(self) -> dict[str, str]:
        """What a client of it needs."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


class _Quiet(WSGIRequestHandler):
    # Ranges of one connection come one after the other, as with any other server.
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any, **__: Any) -> None: ...


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server with the bucket ``models`` in it."""
    real, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
    made = S3Server("")

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
        method, key = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
        with lock:
            made.asked.append((method, key, environ.get("HTTP_RANGE", "")))
        lie = made.lie(environ, start) if made.lie is not None else None
        for piece in real(environ, start) if lie is None else lie:
            if method == "GET":
                with lock:
                    made.sent_bytes[key] = made.sent_bytes.get(key, 0) + len(piece)
            yield piece

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
