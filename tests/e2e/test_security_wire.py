"""Bytes that well-behaved clients never send: one answer, never a 5xx, never another request than the one that paid."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import LiveRegion

CHAT = b"POST /v1/chat/completions HTTP/1.1"
MODELS = b"GET /v1/models HTTP/1.1"
HELLO = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}).encode()
#: What a smuggler hides in a body: it must never be answered.
HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: hidden-1\r\n\r\n"


def raw(region: LiveRegion, *parts: bytes) -> bytes:
    """All that is said to these bytes: until the server closes, or 3 s after its last word."""
    where = urlsplit(region.url)
    told = b""
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        with suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        with suppress(ConnectionError, TimeoutError):
            while data := connection.recv(65536):
                told += data
                connection.settimeout(3 if told.endswith((b"}", b"\r\n\r\n")) else 30)
    return told


def statuses(told: bytes) -> list[int]:
    """Final statuses, in their order."""
    found = [int(part[2:5]) for part in told.split(b"HTTP/1.")[1:]]
    return [status for status in found if status >= 200]


def request(line: bytes, *headers: bytes, body: bytes = b"", key: str | None = None, length: bool = True) -> bytes:
    own = [b"host: x", b"content-type: application/json", b"connection: close"]
    own += [b"authorization: Bearer " + key.encode()] if key else []
    own += [b"content-length: %d" % len(body)] if length and line.startswith(b"POST") else []
    return b"\r\n".join([line, *own, *headers, b"", body])


def test_the_helper_sees_an_ordinary_answer(region: LiveRegion) -> None:
    assert statuses(raw(region, request(CHAT, body=HELLO, key=region.key))) == [200]
    assert statuses(raw(region, request(MODELS))) == [401]


#: Two readings of where a request ends. None may reach a Router.
SMUGGLED = {
    "two lengths": ([b"content-length: 4", b"content-length: %d" % (len(HIDDEN) + 4)], b"{}  " + HIDDEN),
    "two equal lengths": ([b"content-length: 2", b"content-length: 2"], b"{}"),
    "a list of lengths": ([b"content-length: 2, 2"], b"{}"),
    "length and chunks": ([b"content-length: 4", b"transfer-encoding: chunked"], b"0\r\n\r\n" + HIDDEN),
    "chunks and length": ([b"transfer-encoding: chunked", b"content-length: 4"], b"0\r\n\r\n" + HIDDEN),
    "chunks, then not": ([b"transfer-encoding: chunked, identity"], b"0\r\n\r\n" + HIDDEN),
    "chunks misspelled": ([b"content-length: 2", b"transfer-encoding: xchunked"], b"{}" + HIDDEN),
    "chunks twice": ([b"transfer-encoding: chunked", b"transfer-encoding: chunked"], b"0\r\n\r\n" + HIDDEN),
    "a signed length": ([b"content-length: +2"], b"{}"),
    "a negative length": ([b"content-length: -2"], b"{}"),
    "a length in hex": ([b"content-length: 0x2"], b"{}"),
    "a length too big to count": ([b"content-length: 18446744073709551617"], b"{}"),
    "a chunk too big to count": ([b"transfer-encoding: chunked"], b"FFFFFFFFFFFFFFFF1\r\n{}\r\n0\r\n\r\n"),
    "a chunk of no size": ([b"transfer-encoding: chunked"], b"zz\r\n{}\r\n0\r\n\r\n"),
    "a space before the colon": ([b"content-length : 2"], b"{}"),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_request_with_two_ends_is_refused_and_hides_no_other(region: LiveRegion, name: str) -> None:
    headers, body = SMUGGLED[name]
    sent = request(CHAT, *headers, body=body, key=region.key, length=False).replace(b"connection: close\r\n", b"")
    told = raw(region, sent)
    assert len(statuses(told)) <= 2 and all(400 <= status < 500 for status in statuses(told)), told
    assert b"hidden-1" not in told


#: Headers that no honest client sends. With the key: no 5xx. Without: no way in.
ODD = {
    "folded": b"x-a: b\r\n c",
    "folded authorization": b"authorization:\r\n Bearer x",
    "NUL": b"x-a: b\0c",
    "bare CR": b"x-a: b\rc",
    "escape": b"x-a: \x1b[31m",
    "delete": b"x-a: \x7f",
    "no colon": b"x-a",
    "no name": b": b",
    "space in a name": b"x a: b",
    "not ASCII in a name": b"x-\xff: b",
    "latin-1": b"x-a: \xe9\x80\xff",
    "bad session": b"x-session-id: \xff\xfe",
    "bidi session": "x-session-id: \u202egnp".encode(),
    "bad request id": b"x-request-id: \xff",
    "request id with spaces": b"x-request-id: a -- POST / 200",
    "two request ids": b"x-request-id: a\r\nx-request-id: b",
    "bad traceparent": b"traceparent: \xff",
    "bad timeout": b"x-request-timeout-seconds: \xff",
    "underscored length": b"content_length: 99999",
    "underscored id": b"x_request_id: other",
    "underscored key": b"authorization_: Bearer x",
    "serve's own": b"serve_multiplexed_model_id: x",
    "serve's own, spelled differently": b"serve-multiplexed-model-id: x",
    "another host": b"host: evil",
    "forwarded": b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-host: evil\r\nforwarded: for=127.0.0.1",
    "another path": b"x-original-url: /grix/explain\r\nx-rewrite-url: /grix/explain",
    "another method": b"x-http-method-override: DELETE",
    "upgrade": b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ",
    "expect": b"expect: 100-continue",
    "expect more": b"expect: 200-everything",
    "many": b"\r\n".join(b"x-%d: y" % i for i in range(300)),
    "long": b"x-a: " + b"y" * 100_000,
    "very long": b"x-a: " + b"y" * 5_000_000,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_header_is_no_fault_of_ours_and_no_way_in(region: LiveRegion, name: str) -> None:
    known = raw(region, request(CHAT, ODD[name], body=HELLO, key=region.key))
    assert len(statuses(known)) <= 1 and all(status < 500 for status in statuses(known)), known[:300]
    stranger = raw(region, request(CHAT, ODD[name], body=HELLO))
    assert all(400 <= status < 500 for status in statuses(stranger)), stranger[:300]
    # A client that still sends when it is cut sees a reset; everybody else is told.
    assert statuses(stranger) or name == "very long"


@pytest.mark.parametrize("line", [CHAT, MODELS])
def test_two_authorizations_are_none(region: LiveRegion, line: bytes) -> None:
    good, bad = b"authorization: Bearer " + region.key.encode(), b"authorization: Bearer grix-bad"
    for first, second in ((good, bad), (bad, good), (good, good)):
        told = raw(region, request(line, first, second, body=HELLO if line is CHAT else b""))
        assert statuses(told) == [400], told


@pytest.mark.parametrize("line", [CHAT, MODELS])
@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer  ", "Basic {key}", "{key}", "Bearer {key}x", "Bearer {key} x", "Token {key}"]
)
def test_no_spelling_of_the_key_but_one_opens(region: LiveRegion, line: bytes, value: str) -> None:
    header = b"authorization: " + value.format(key=region.key).encode()
    assert statuses(raw(region, request(line, header, body=HELLO if line is CHAT else b""))) == [401]


@pytest.mark.parametrize(
    "line",
    [
        b"GET /v1/models/%0d%0ax-a:%20b HTTP/1.1",
        b"GET /v1/models/%00 HTTP/1.1",
        b"GET /v1/models/%ff%fe HTTP/1.1",
        b"GET /v1/models/..%2f..%2fgrix/requests/x HTTP/1.1",
        b"GET //v1/models HTTP/1.1",
        b"GET /./v1/models HTTP/1.1",
        b"GET /v1/models?\xff HTTP/1.1",
        b"GET /v1/models\xff HTTP/1.1",
        b"GET http://evil/v1/models HTTP/1.1",
        b"GET /grix/requests/%1b%5b31m HTTP/1.1",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1",
        b"GET * HTTP/1.1",
        b"BREW /v1/models HTTP/1.1",
        b"get /v1/models HTTP/1.1",
        b"TRACE /v1/models HTTP/1.1",
        b"CONNECT x:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"PUT /api/serve/applications/ HTTP/1.1",
        b"GET /v1/models HTTP/9.9",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda line: ascii(line)[:50],
)
def test_an_odd_line_is_no_fault_of_ours_and_no_way_in(region: LiveRegion, line: bytes) -> None:
    known = statuses(raw(region, request(line, key=region.key)))
    assert all(status < 500 for status in known) and len(known) <= 1, known
    stranger = statuses(raw(region, request(line)))
    assert all(400 <= status < 500 for status in stranger), stranger


def test_a_websocket_is_not_opened(region: LiveRegion) -> None:
    upgrade = b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    sent = request(b"GET /v1/chat/completions HTTP/1.1", upgrade, key=region.key)
    told = raw(region, sent.replace(b"connection: close", b"connection: upgrade"))
    assert 101 not in [int(part[2:5]) for part in told.split(b"HTTP/1.")[1:]], told
    assert all(status < 500 for status in statuses(told)), told


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
def test_a_packed_body_is_refused_and_never_unpacked(region: LiveRegion, encoding: str) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)
    for packed in (bomb, zlib.compress(HELLO), gzip.compress(HELLO)):
        sent = request(CHAT, b"content-encoding: " + encoding.encode(), body=packed, key=region.key)
        assert statuses(raw(region, sent)) == [415]


def test_a_body_too_large_is_refused_whatever_its_length_says(region: LiveRegion) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    sent = request(CHAT, b"transfer-encoding: chunked", key=region.key, length=False)
    told = raw(region, sent, *[chunk] * 12, b"0\r\n\r\n")
    assert statuses(told) == [413] or told == b""
    assert region.chat("hello", max_tokens=2)[0] == 200
