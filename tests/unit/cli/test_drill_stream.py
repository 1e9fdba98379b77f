"""How the drill's client tells endings apart, against real HTTP; and what it makes of a snapshot."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from serve_app.cli.client import Client
from serve_app.cli.drill_stream import LINES, Entry, Stream, agent_of, records_of, with_retries
from serve_app.cli.drill_watch import Watch, sight_of
from serve_app.cli.say import Failed
from serve_app.core.drill_verdict import Asked, Sight

CHUNK = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "gone"}}\n\n'


@contextmanager
def site(answer: Callable[[web.Request, dict[str, Any]], Any], extra: dict[str, Any] | None = None) -> Iterator[Client]:
    """A region whose answers are ``answer``'s, in a thread of its own."""
    started: dict[str, Any] = {}
    ready = threading.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        made: web.StreamResponse = await answer(request, await request.json())
        return made

    async def kept(request: web.Request) -> web.Response:
        found = (extra or {}).get("attempts")
        return web.json_response({"attempts": found} if found else {})

    async def fleet(request: web.Request) -> web.Response:
        return web.json_response({"snapshot": (extra or {})["snapshot"]})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/grix/requests/{id}", kept)
        app.router.add_get("/grix/fleet", fleet)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        started["port"] = runner.addresses[0][1]
        started["end"], started["loop"] = asyncio.Event(), asyncio.get_running_loop()
        ready.set()
        await started["end"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait(10)
    try:
        yield Client(f"http://127.0.0.1:{started['port']}", "grix-k")
    finally:
        started["loop"].call_soon_threadsafe(started["end"].set)
        thread.join()


async def stream_of(request: web.Request, *parts: bytes, drop: bool = False) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    if drop:
        assert request.transport is not None
        request.transport.abort()
    return response


async def good(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert request.headers["authorization"] == "Bearer grix-k"
    if not body["stream"]:
        return web.json_response({"choices": []})
    return await stream_of(request, CHUNK, CHUNK, DONE)


def first_streams(stream: Stream) -> list[Asked]:
    """Of one entry, those that ask for a stream before the first round of whole answers begins."""
    return [asked for name, asked in stream.ids() if int(name.split("-")[2]) < len(LINES)]


def endings(
    answer: Callable[..., Any],
    count: int = 4,
    patience_s: float = 5.0,
    gone: bool = False,
    of: Callable[[Stream], list[Asked]] = Stream.asked,
) -> list[Asked]:
    """How the first requests end at one entry, or, with ``gone``, at an entry that is gone and a good one."""
    with site(answer) as bad, site(good) as other:
        entries = [Entry("a", bad)] + ([Entry("b", other)] if gone else [])
        stream = Stream(entries, rate_rps=200.0, patience_s=patience_s)
        stream.gone = frozenset({"a"} if gone else ())
        stream.start()
        until_s = time.monotonic() + 20
        while len(of(stream)) < count and time.monotonic() < until_s:
            time.sleep(0.005)
        stream.stop()
        return of(stream)


def test_whole_answers_have_a_first_byte() -> None:
    asked = endings(good, count=2 * len(LINES))
    assert {a.ending for a in asked} == {"whole"}
    assert all(a.first_s is not None and a.began_s <= a.first_s <= a.ended_s for a in asked)


async def refuses(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"code": "no_healthy_target"}}, status=503)


async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream_of(request, CHUNK, ERROR)


async def cuts(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream_of(request, CHUNK, drop=True)


async def ends_early(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return await stream_of(request, CHUNK)


async def says_nothing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError("nobody waits so long")


@pytest.mark.parametrize(
    ("answer", "ending"),
    [(refuses, "refused"), (breaks, "broken"), (cuts, "cut"), (ends_early, "cut"), (says_nothing, "hung")],
)
def test_each_way_to_fail_is_told_apart(answer: Callable[..., Any], ending: str) -> None:
    asked = endings(answer, count=2, patience_s=0.3 if ending == "hung" else 20.0, of=first_streams)
    assert {a.ending for a in asked} == {ending}
    if ending == "refused":
        assert re.match(r"request drill-[0-9a-f]{8}-\d+-0 at a: 503 .*no_healthy_target", asked[0].told)


@pytest.mark.parametrize("answer", [refuses, cuts])
def test_what_fails_at_an_entry_that_is_gone_is_asked_at_the_next(answer: Callable[..., Any]) -> None:
    asked = endings(answer, count=8, gone=True)
    lost = [a for a in asked if a.ending == "lost"]
    assert lost and {a.entry for a in lost} == {"a"}
    assert {a.ending for a in asked if a.entry == "b"} == {"whole"}


def test_who_was_tried_again_is_known_from_the_entry() -> None:
    attempts = [{"target": "a/x@1", "result": "unreachable"}, {"target": "b/x@1", "result": "started"}]
    with site(good, {"attempts": attempts}) as client:
        stream = Stream([Entry("a", client)], rate_rps=50.0)
        began_s = time.monotonic()
        stream.start()
        while len(stream.asked()) < 3:
            time.sleep(0.005)
        stream.stop()
        ended_s = time.monotonic()
        records = records_of(stream, [Entry("a", client)], began_s, ended_s)
        assert len(records) == len(stream.asked())
        assert all(a.retried for a in with_retries(stream, began_s, ended_s, records))
        assert not any(a.retried for a in with_retries(stream, ended_s, ended_s, records))
        assert records_of(stream, [Entry("a", client)], ended_s, ended_s) == {}


def target(**fields: Any) -> dict[str, Any]:
    plain = {"region": "a", "agent": "chat", "health": "healthy", "breaker": "closed"}
    return {**plain, "drained": False, "weight": 1.0, "why": "", **fields}


@pytest.mark.parametrize(
    ("targets", "seen"),
    [
        ([target(region="b", health="ejected"), target()], Sight(5.0, False, False, 1.0, "peer")),
        ([target(agent="doc", health="ejected"), target()], Sight(5.0, False, False, 1.0, "peer")),
        ([target(health="slow", weight=0.3)], Sight(5.0, False, True, 0.3, "peer")),
        ([target(health="ejected", why="peer silent for 1.2 s")], Sight(5.0, True, False, 1.0, "peer")),
        ([target(agent="doc"), target(breaker="open")], Sight(5.0, True, False, 1.0, "passive")),
        ([target(health="ejected", why="coordinator: failed")], Sight(5.0, True, False, 1.0, "coordinator")),
        ([target(drained=True)], Sight(5.0, True, False, 1.0, "peer")),
        ([target(health="unknown")], Sight(5.0, True, False, 1.0, "peer")),
        ([target(region="b"), target(agent="doc")], Sight(5.0, True)),
    ],
)
def test_what_a_snapshot_says_of_the_target(targets: list[dict[str, Any]], seen: Sight) -> None:
    assert sight_of({"targets": targets}, "a", "chat", 5.0) == seen


def test_the_agent_of_the_stream_is_asked_for() -> None:
    async def tells(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert (body["messages"][0]["content"], body["max_tokens"]) == (LINES[0], 1)
        return web.json_response({}, headers={"x-grix-agent": "qwen-chat"})

    with site(tells) as client:
        assert agent_of(Entry("b", client)) == "qwen-chat"
    with site(refuses) as client, pytest.raises(Failed, match="b: 503 no_healthy_target"):
        agent_of(Entry("b", client))


def test_the_watch_looks_again_and_again() -> None:
    with site(good, {"snapshot": json.loads(json.dumps({"targets": [target()]}))}) as client:
        watch = Watch(Entry("b", client), "a", "chat")
        watch.start()
        until_s = time.monotonic() + 10
        while len(watch.sights) < 3 and time.monotonic() < until_s:
            time.sleep(0.01)
        watch.stop()
    times = [s.at_s for s in watch.sights]
    assert len(times) >= 3 and times == sorted(times)
    assert {(s.out, s.weight) for s in watch.sights} == {(False, 1.0)}
