"""A small HTTP client for one region: JSON, and streams read event by event."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from serve_app.cli.say import Failed

_BROKEN: Final = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. ``headers`` are lower-case; ``body`` is JSON, or text where it is none."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def fault(self) -> str:
        """What an error answer says."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        if isinstance(error, dict):
            return f"{self.status} {error.get('code')}: {error.get('message')}"
        return f"{self.status} {str(self.body)[:200]}"


@dataclass(frozen=True, slots=True)
class Client:
    """One region's URL, and the key to use there (``None``: none)."""

    url: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    #: File of the region's own certificate, trusted as it is: this machine made the region listen with it.
    certificate: str | None = None

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that stays open from one request to the next."""
        parts = urlsplit(self.url)
        host = parts.hostname or "127.0.0.1"
        context = self.tls()
        if context is None:
            return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)

    def tls(self) -> ssl.SSLContext | None:
        """How to speak TLS with the region; ``None`` where it speaks none."""
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.certificate)
        # The certificate names the service, not this machine's loopback.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self.connect(timeout_s)
        sent = {"Content-Type": "application/json", **headers}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, sent)
            return connection, connection.getresponse()
        except _BROKEN as error:
            connection.close()
            raise Failed(f"{self.url}{path}: no answer ({error or type(error).__name__})") from None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """One request, read whole.

        Raises:
            Failed: without an answer.
        """
        connection, response = self._send(method, path, body, headers or {}, timeout_s or self.timeout_s)
        try:
            raw = response.read()
        except _BROKEN as error:
            raise Failed(f"{self.url}{path}: the answer broke off ({error})") from None
        finally:
            connection.close()
        head = {k.lower(): v for k, v in response.getheaders()}
        return Reply(response.status, head, _json_or_text(raw.decode("utf-8", "replace")))

    def stream(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> tuple[Reply, Iterator[dict[str, Any]]]:
        """A streamed answer: head, and its events as they come. An error answer has no events.

        Raises:
            Failed: without an answer; while reading, when the stream ends without ``[DONE]``.
        """
        connection, response = self._send("POST", path, body, headers or {}, self.timeout_s)
        head = {k.lower(): v for k, v in response.getheaders()}
        if response.status != 200:
            text = response.read().decode("utf-8", "replace")
            connection.close()
            return Reply(response.status, head, _json_or_text(text)), iter(())
        return Reply(200, head, None), self._events(connection, response)

    def _events(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> Iterator[dict[str, Any]]:
        try:
            for raw in response:
                line = raw.decode("utf-8", "replace").strip()
                if line == "data: [DONE]":
                    return
                if line.startswith("data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise Failed(f"the stream ended with an error: {event['error'].get('message')}")
                    yield event
            raise Failed("the stream ended without [DONE]")
        except (*_BROKEN, ValueError) as error:
            raise Failed(f"{self.url}: the stream broke off ({error})") from None
        finally:
            connection.close()


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
