"""The load client against a server of a few lines that answers however a test wants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.gateway_run import Client
from benchmarks.load_client import arrivals_s, run
from benchmarks.load_http import FIRST_TEXT, Body, fault_of

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


WHOLE = CHUNKED + chunk(ROLE) + chunk(TEXT) + chunk(LAST) + b"0\r\n\r\n"


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server on loopback; yields its address and the bodies it got."""
    bodies: list[bytes] = []
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/v1/chat/completions", bodies
    finally:
        running.close()
        for writer in writers:
            writer.close()


def job(url: str, **fields: Any) -> dict[str, Any]:
    base = {"kind": "closed", "streams": 2, "requests": 6, "limit_s": 30.0, "seed": 1, "url": url, "headers": {}}
    return {**base, "messages": [], "body": {"stream": True}, **fields}


def sending(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


async def test_whole_answers_count_with_first_text_before_the_end() -> None:
    async with server(sending(WHOLE)) as (url, bodies):
        told = await run(job(url))
    assert told["failures"] == {} and told["left"] == 0
    assert len(told["total_ms"]) == len(told["ttft_ms"]) == len(bodies) == 6
    assert all(first <= total for first, total in zip(told["ttft_ms"], told["total_ms"], strict=True))
    assert len(set(bodies)) == 6, "every request has a text of its own"


async def test_as_a_process_it_answers_a_line_a_job() -> None:
    async with server(sending(WHOLE)) as (url, _):
        client = await asyncio.to_thread(Client)
        answers = [await asyncio.to_thread(client.ask, job(url, requests=n)) for n in (2, 3)]
        await asyncio.to_thread(client.stop)
    assert [len(answer["total_ms"]) for answer in answers] == [2, 3]
    assert all(answer["failures"] == {} and answer["client_cpu_s"] > 0 for answer in answers)


async def test_answers_in_single_bytes_are_read_like_any() -> None:
    async with server(sending(*(WHOLE[i : i + 1] for i in range(len(WHOLE))))) as (url, _):
        told = await run(job(url, requests=2))
    assert told["failures"] == {} and len(told["total_ms"]) == 2


async def test_a_status_a_cut_stream_and_a_hidden_error_are_failures() -> None:
    refused = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno"
    cut = CHUNKED + chunk(ROLE) + chunk(TEXT) + b"0\r\n\r\n"
    error = CHUNKED + chunk(ROLE) + chunk(b'data: {"error": {}}\n\n' + LAST) + b"0\r\n\r\n"
    for raw, why in ((refused, "status 503"), (cut, "no [DONE]"), (error, "error in the stream")):
        async with server(sending(raw)) as (url, _):
            told = await run(job(url, streams=1, requests=2))
        assert told["failures"] == {why: 2} and told["total_ms"] == []


async def test_a_connection_that_dies_is_a_failure_and_the_next_one_is_new() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(ROLE))
        await writer.drain()
        writer.close()

    async with server(answer) as (url, bodies):
        told = await run(job(url, streams=1, requests=3))
    assert told["failures"] == {"connection lost": 3} and len(bodies) == 3


async def test_nobody_at_home_is_a_failure() -> None:
    async with server(sending(WHOLE)) as (url, _):
        pass
    told = await run(job(url, streams=1, requests=2))
    assert told["failures"] == {"cannot connect": 2}


async def test_leaving_is_counted_apart() -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(ROLE))

    async with server(never) as (url, _):
        told = await run(job(url, leave_ratio=1.0, leave_within_s=0.01))
    assert told["left"] == 6 and told["failures"] == {} and told["total_ms"] == []


async def test_open_loop_sends_the_whole_plan() -> None:
    async with server(sending(WHOLE)) as (url, bodies):
        told = await run(job(url, kind="open", rate_rps=200.0, seconds=0.2))
    assert len(bodies) == len(arrivals_s(200.0, 0.2, random.Random(1))) == len(told["total_ms"])


def test_arrivals_are_poisson_by_seed() -> None:
    plan = arrivals_s(100.0, 50.0, random.Random(3))
    assert plan == sorted(plan) and plan == arrivals_s(100.0, 50.0, random.Random(3))
    assert len(plan) == pytest.approx(5000, rel=0.05)


def test_a_body_of_known_length_and_one_until_the_end() -> None:
    known = Body(b"HTTP/1.1 200 OK\r\nContent-Length: 4")
    assert known.feed(b"ab") == b"ab" and not known.complete
    assert known.feed(b"cd") == b"cd" and known.complete
    endless = Body(b"HTTP/1.1 200 OK\r\nConnection: close")
    assert endless.feed(b"ab") == b"ab" and not endless.complete and endless.until_closed and endless.closes


def test_first_text_is_not_the_role() -> None:
    assert FIRST_TEXT.search(ROLE) is None
    assert FIRST_TEXT.search(ROLE + TEXT) is not None
    assert FIRST_TEXT.search(b'data: {"choices": [{"text": "x"}]}') is not None


def test_an_answer_without_a_reason_to_end_is_not_whole() -> None:
    assert fault_of(200, ROLE + TEXT + b"data: [DONE]\n\n") == "no finish_reason"
    assert fault_of(200, ROLE + TEXT + LAST) == ""
