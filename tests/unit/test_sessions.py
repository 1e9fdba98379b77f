"""A request's session: what it adds to the request, what of it is kept, and nothing at all without one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.core.sessions import History, Turn, unpack
from serve_app.core.table import Region, Tenant
from serve_app.openai_request import ParsedRequest, parse_request
from serve_app.ports import Opened, RequestRecord
from serve_app.sessions import RequestSession, open_session
from tests.fake_sessions import FakeSessions

ACME = Tenant("acme", (), frozenset({"eu", "sg"}))
SG = Region("cloud-a", "cloud-a", frozenset({"sg"}))
TALK = History(3, "User: hi | Assistant: hello", (Turn("q1", "a1"), Turn("q2", "a2")))
KEY = "acme//s1"


def request(history: bool = False, **metadata: Any) -> ParsedRequest:
    told = {"session_id": "s1", **({"history": "server"} if history else {}), **metadata}
    body = {"messages": [{"role": "user", "content": "and now?"}], "metadata": told}
    return parse_request("chat", json.dumps(body).encode(), {})


async def opened(store: FakeSessions, parsed: ParsedRequest) -> RequestSession:
    return await open_session(store, SG, ACME, parsed, RequestRecord("r1", "chat", language="ja"))


async def test_a_request_without_a_session_asks_nobody() -> None:
    store = FakeSessions()
    session = await opened(store, request(session_id=None))
    assert (session.key, session.language, session.kept("a"), session.carry()) == (None, None, None, b"")
    assert await session.keep("a", "x") == "x"
    session.begun()
    session.hear(b"data: [DONE]\n\n")
    session.ended(b"{}")
    assert session.with_history() is session.parsed
    assert session.headers() == {}
    assert (store.asked, store.picked, store.told) == ([], [], [])
    assert session.record.session_store is None


async def test_a_session_is_its_tenants_and_brings_language_and_pick() -> None:
    store = FakeSessions({KEY: Opened(KEY, "ko", {"a": "x"}, TALK)})
    session = await opened(store, request())
    assert (session.key, session.language, session.kept("a"), session.kept("b")) == (KEY, "ko", "x", None)
    assert store.asked == [(KEY, False)]
    # Turns are for those that ask for them.
    assert session.with_history() is session.parsed
    assert session.headers() == {"x-grix-session": "kept"}


async def test_the_conversation_stands_before_the_new_turn() -> None:
    session = await opened(FakeSessions({KEY: Opened(KEY, history=TALK)}), request(history=True))
    roles = [m["role"] for m in session.with_history().messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert session.headers() == {"x-grix-session": "kept", "x-grix-history": "2"}


@pytest.mark.parametrize(("context_tokens", "turns", "messages"), [(280, 2, 5), (250, 1, 4), (8, 0, 1)])
async def test_half_of_the_agents_context_is_for_what_was_said(context_tokens: int, turns: int, messages: int) -> None:
    talk = History(2, "", (Turn("q1 " * 100, "a1"), Turn("q2", "a2")))
    session = await opened(FakeSessions({KEY: Opened(KEY, history=talk)}), request(history=True))
    assert len(session.with_history(context_tokens).messages) == messages
    assert session.headers()["x-grix-history"] == str(turns)


async def test_classes_of_data_are_kept_apart_and_only_where_they_may_be() -> None:
    """What may be in the EU only is neither kept in this region nor told to an engine with what may be anywhere."""
    store = FakeSessions({KEY: Opened(KEY, history=TALK)})
    here = await opened(store, request(history=True, data_class="sg"))
    there = await opened(store, request(history=True, data_class="eu"))
    assert store.asked == [("acme/sg/s1", True), ("acme/eu/s1", False)]
    for session in (here, there):
        assert session.with_history().messages == session.parsed.messages
        session.ended(json.dumps({"choices": [{"index": 0, "message": {"content": "fine"}}]}).encode())
    assert [key for key, _, _ in store.told] == ["acme/sg/s1"]
    assert here.headers() == {"x-grix-session": "kept", "x-grix-history": "0"}
    assert there.headers() == {"x-grix-session": "kept", "x-grix-history": "off"}


async def test_a_first_pick_is_kept_once() -> None:
    store = FakeSessions()
    session = await opened(store, request())
    assert await session.keep("a", "x") == "x"
    assert await session.keep("a", "x") == "x"
    assert store.picked == [(KEY, "a", "x")]
    assert session.record.session_moved_from is None


async def test_another_routers_pick_stands() -> None:
    session = await opened(FakeSessions(first="y"), request())
    assert await session.keep("a", "x") == "y"
    assert session.record.session_moved_from is None


async def test_a_session_that_moves_is_told_from_where() -> None:
    store = FakeSessions({KEY: Opened(KEY, picks={"a": "x"})})
    session = await opened(store, request())
    assert await session.keep("a", "y") == "y"
    assert session.record.session_moved_from == "x"
    assert store.picked == [(KEY, "a", "y")]


@pytest.mark.parametrize("store", ["off", "degraded"])
async def test_a_store_that_fails_is_told_and_changes_no_choice(store: Any) -> None:
    session = await opened(FakeSessions(store=store), request(history=True))
    assert await session.keep("a", "x") == "x"
    assert session.record.session_store == store
    session.with_history()
    assert session.headers() == {"x-grix-session": store, "x-grix-history": "off" if store == "off" else "0"}


async def test_the_language_of_the_answer_is_remembered_but_not_a_doubt() -> None:
    store = FakeSessions()
    session = await opened(store, request())
    session.begun()
    session.record.language = "und"
    session.begun()
    assert store.told == [(KEY, "ja", None), (KEY, None, None)]


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


async def test_a_stream_that_ended_is_a_turn() -> None:
    store = FakeSessions()
    session = await opened(store, request(history=True))
    for data in (event("こん"), event("にちは"), b"data: [DONE]\n\n"):
        session.hear(data)
    session.ended()
    assert store.told == [(KEY, None, Turn("and now?", "こんにちは"))]


async def test_str_15_an_answer_that_was_stopped_is_no_turn() -> None:
    store = FakeSessions()
    session = await opened(store, request(history=True))
    session.hear(event("half"))
    session.ended()
    assert store.told == []


@pytest.mark.parametrize("content", [None, ""])
async def test_an_answer_without_text_is_no_turn(content: Any) -> None:
    store = FakeSessions()
    session = await opened(store, request(history=True))
    session.ended(json.dumps({"choices": [{"index": 0, "message": {"content": content}}]}).encode())
    assert store.told == []


async def test_a_whole_answer_is_a_turn_only_where_it_was_asked_for() -> None:
    store = FakeSessions()
    body = json.dumps({"choices": [{"index": 0, "message": {"content": "fine"}}]}).encode()
    for parsed in (request(), request(history=True)):
        (await opened(store, parsed)).ended(body)
    assert store.told == [(KEY, None, Turn("and now?", "fine"))]


async def test_a_carry_has_language_and_conversation() -> None:
    session = await opened(FakeSessions({KEY: Opened(KEY, history=TALK)}), request(history=True))
    carried = unpack(session.carry())
    assert carried is not None and (carried.language, carried.history) == ("ja", TALK)
    session.record.language = "und"
    assert (unpack(session.carry()) or carried).language is None
