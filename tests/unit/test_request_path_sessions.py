"""Sessions on the request path: what is kept, moved, put in front of a new turn, and told when the store is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.sessions import Carry, Held, History, Turn, unpack
from serve_app.core.snapshots import Load, Snapshot
from serve_app.ports import Accepted, Body, Head, Opened, Tail, Usage
from serve_app.replies import Answer
from tests.fake_sessions import FakeSessions
from tests.fakes import BEARER, HELLO, OPERATOR, Stage, Step, a_table, agent, failed, two_regions

KEY = "acme//s1"
SESSION = {**BEARER, "x-session-id": "s1"}
HISTORY = {**SESSION, "x-grix-history": "server"}


def whole(text: str) -> tuple[Step, ...]:
    body = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}).encode()
    return (Accepted("t", "r"), Head(max_tokens=64), Body(body), Tail("success", "stop", Usage(7, 3)))


def event(text: str) -> Body:
    return Body(b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n")


async def run(stage: Stage, headers: dict[str, str], text: str = "hello", **fields: Any) -> Answer:
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await stage.run(json.dumps(body).encode(), headers)


def regions(stage: Stage) -> list[str]:
    return [target.region for target, _ in stage.agents.calls]


def spoken(stage: Stage) -> list[tuple[str, str]]:
    """Roles and texts of the last call, without the template's."""
    messages = stage.agents.calls[-1][1].body["messages"]
    return [(m["role"], m["content"]) for m in messages[1:]]


def waiting(region: str, count: int) -> Snapshot:
    made = two_regions()
    busy = Load(queue_wait_p95_ms=10.0, waiting=count, running=4)
    return replace(made, targets=tuple(replace(t, load=busy) if t.region == region else t for t in made.targets))


async def test_a_request_without_a_session_touches_no_store() -> None:
    store = FakeSessions()
    stage = Stage(sessions=store)
    answer = await run(stage, BEARER)
    assert answer.status == 200 and "x-grix-session" not in answer.headers
    assert (store.asked, store.picked, store.told) == ([], [], [])


async def test_a_session_stays_where_it_was_answered_first() -> None:
    store = FakeSessions({KEY: Opened(KEY, "ja", {"qwen-chat": "cloud-b"})})
    stage = Stage(sessions=store, snapshot=two_regions())
    answer = await run(stage, SESSION)
    assert regions(stage) == ["cloud-b"]
    assert answer.headers["x-grix-session"] == "kept"
    assert store.picked == []
    # The same id of another tenant is another session.
    await run(stage, {**OPERATOR, "x-session-id": "s1"})
    assert store.asked == [(KEY, False), ("ops//s1", False)]
    assert [key for key, _, _ in store.picked] == ["ops//s1"]


async def test_rte_06_every_turn_goes_where_the_first_of_any_router_went() -> None:
    store = FakeSessions()
    routers = [Stage(sessions=store, snapshot=two_regions()) for _ in range(2)]
    for turn in range(10):
        await run(routers[turn % 2], SESSION)
    assert len({region for stage in routers for region in regions(stage)}) == 1
    assert len(store.picked) == 1


@pytest.mark.parametrize("first", ["cloud-a", "cloud-b"])
async def test_a_router_that_comes_second_honours_the_first(first: str) -> None:
    stage = Stage(sessions=FakeSessions(first=first), snapshot=two_regions())
    await run(stage, SESSION)
    assert regions(stage) == [first]
    (record,) = stage.journal.records
    assert record.session_moved_from is None and str(record.reason).startswith(first)


async def test_rte_04b_a_region_that_left_is_no_error_and_is_forgotten() -> None:
    store = FakeSessions({KEY: Opened(KEY, picks={"qwen-chat": "cloud-z"})})
    stage = Stage(sessions=store)
    assert (await run(stage, SESSION)).status == 200
    assert store.known[KEY].picks == {"qwen-chat": "cloud-a"}
    assert stage.journal.records[0].session_moved_from == "cloud-z"


async def test_a_session_is_handed_over_when_more_than_five_wait() -> None:
    for count, region, moved in ((5, "cloud-a", None), (6, "cloud-b", "cloud-a")):
        store = FakeSessions({KEY: Opened(KEY, picks={"qwen-chat": "cloud-a"})})
        stage = Stage(sessions=store, snapshot=waiting("cloud-a", count))
        await run(stage, SESSION)
        assert regions(stage) == [region]
        assert store.known[KEY].picks == {"qwen-chat": region}
        assert stage.journal.records[0].session_moved_from == moved


async def test_a_session_that_is_answered_elsewhere_takes_its_last_turns_along() -> None:
    talk = History(3, "User: q1 | Assistant: a1", (Turn("q2", "a2"), Turn("q3", "a3")))
    store = FakeSessions({KEY: Opened(KEY, "ja", {"qwen-chat": "cloud-b"}, talk)})
    stage = Stage(scripts=[whole("ok")], sessions=store, snapshot=two_regions())
    await run(stage, HISTORY)
    origin = stage.agents.calls[0][1].origin
    assert origin is not None and origin.session == "s1"
    assert unpack(origin.carry) == Carry("en", talk)
    await run(stage, {**BEARER, "x-session-id": "s2"})
    assert (regions(stage), stage.agents.calls[1][1].origin) == (["cloud-b", "cloud-a"], None)


async def test_server_side_history_lets_a_client_send_the_new_turn_alone() -> None:
    store = FakeSessions()
    stage = Stage(scripts=[whole("Hello, Ann."), whole("You are Ann.")], sessions=store)
    first = await run(stage, HISTORY, "I am Ann.")
    assert first.headers["x-grix-history"] == "0"
    assert spoken(stage) == [("user", "I am Ann.")]
    second = await run(stage, HISTORY, "Who am I?")
    assert second.headers["x-grix-history"] == "1"
    assert spoken(stage) == [("user", "I am Ann."), ("assistant", "Hello, Ann."), ("user", "Who am I?")]
    assert stage.journal.records[1].history_turns == 1
    # The template speaks first, and once.
    assert stage.agents.calls[1][1].body["messages"][0] == {"role": "system", "content": "Be kind."}
    # Who does not ask for it gets none, and adds none.
    await run(stage, SESSION, "alone")
    assert spoken(stage) == [("user", "alone")]
    assert store.known[KEY].history.count == 2


async def test_history_counts_as_part_of_the_prompt() -> None:
    talk = History(1, "", (Turn("x" * 1500, "y" * 100),))
    stage = Stage(sessions=FakeSessions({KEY: Opened(KEY, history=talk)}), scripts=[whole("ok")])
    await run(stage, HISTORY)
    (record,) = stage.journal.records
    assert (record.rule, record.agent) == ("long-doc", "qwen-doc")
    # It is more than half of this agent's context of 1000 tokens: the summary alone goes in front.
    assert record.history_turns == 0
    assert spoken(stage) == [("user", "hello")]
    assert stage.agents.calls[0][1].body["messages"][0]["content"].startswith("Be kind.\n\nEarlier in this")


async def consumed(answer: Answer, most: int | None = None) -> list[bytes]:
    """Reads a stream to its end, or leaves after ``most`` parts."""
    assert isinstance(answer.body, AsyncGenerator)
    got: list[bytes] = []
    async for data in answer.body:
        got.append(data)
        if len(got) == most:
            break
    await answer.body.aclose()
    return got


DONE = Body(b"data: [DONE]\n\n")
END = Tail("success", "stop", Usage(7, 3))


async def test_a_streamed_answer_is_remembered_once_it_is_whole() -> None:
    store = FakeSessions()
    script = (Accepted("t", "r"), Head(max_tokens=64), event("Hel"), event("lo"), DONE, END)
    stage = Stage(scripts=[script], sessions=store)
    await consumed(await run(stage, HISTORY, "hi", stream=True))
    assert store.known[KEY].history.turns == (Turn("hi", "Hello"),)


async def test_who_leaves_at_the_end_mark_has_had_the_answer() -> None:
    store = FakeSessions()
    script = (Accepted("t", "r"), Head(max_tokens=64), event("Hello"), DONE, "hang")
    stage = Stage(scripts=[script], sessions=store)
    await consumed(await run(stage, HISTORY, "hi", stream=True), most=2)
    assert store.known[KEY].history.turns == (Turn("hi", "Hello"),)


async def test_str_15_what_was_stopped_never_enters_the_next_turn() -> None:
    store = FakeSessions()
    script = (Accepted("t", "r"), Head(max_tokens=64), event("half"), event("more"), DONE, END)
    stage = Stage(scripts=[script, whole("fine")], sessions=store)
    await consumed(await run(stage, HISTORY, "A", stream=True), most=1)
    answer = await run(stage, HISTORY, "B")
    assert answer.status == 200
    assert spoken(stage) == [("user", "B")]
    assert store.known[KEY].history.turns == (Turn("B", "fine"),)


async def test_a_stream_that_breaks_is_no_turn() -> None:
    store = FakeSessions()
    script = (Accepted("t", "r"), Head(max_tokens=64), event("half"), failed("replica_lost"))
    stage = Stage(scripts=[script], sessions=store)
    await consumed(await run(stage, HISTORY, "A", stream=True))
    assert all(turn is None for _, _, turn in store.told)


@pytest.mark.parametrize("store", ["off", "degraded"])
async def test_a_store_that_is_away_costs_no_answer_and_is_told(store: Any) -> None:
    stage = Stage(scripts=[whole("fine")], sessions=FakeSessions(store=store))
    answer = await run(stage, HISTORY)
    told = (answer.headers["x-grix-session"], answer.headers["x-grix-history"])
    assert (answer.status, *told) == (200, store, "off" if store == "off" else "0")
    assert stage.journal.records[0].session_store == store


def lopsided(busy: str) -> Snapshot:
    """Two regions at one price, of which one has work above its share."""
    made = two_regions()
    loads = {r: Load(10.0, waiting=0, running=4 if r == busy else 0) for r in ("cloud-a", "cloud-b")}
    targets = [replace(t, gpu_hour_usd=1.0, health="healthy", load=loads[t.region]) for t in made.targets]
    return replace(made, targets=tuple(targets))


@pytest.mark.parametrize(("store", "places"), [("kept", 2), ("off", 1), ("degraded", 1)])
async def test_where_no_pick_can_be_kept_load_moves_no_session(store: Any, places: int) -> None:
    seen = set()
    for busy in ("cloud-a", "cloud-b"):
        stage = Stage(sessions=FakeSessions(store=store), snapshot=lopsided(busy))
        await run(stage, SESSION)
        seen.update(regions(stage))
    assert len(seen) == places


async def test_history_without_a_session_is_refused_by_its_field() -> None:
    stage = Stage(sessions=FakeSessions())
    answer = await run(stage, {**BEARER, "x-grix-history": "server"})
    assert isinstance(answer.body, bytes)
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "metadata.session_id")
    assert stage.agents.calls == []


async def test_what_a_limit_refuses_is_kept_nowhere() -> None:
    store = FakeSessions()
    stage = Stage(sessions=store)
    tenant = stage.table.tenants[0]
    limited = replace(tenant, limits=replace(tenant.limits, concurrent=1))
    table = replace(stage.table, tenants=(limited,))
    stage = Stage(table=table, scripts=[(Accepted("t", "r"), "hang")], sessions=store)
    hangs = asyncio.create_task(run(stage, BEARER))
    while not stage.agents.calls:
        await asyncio.sleep(0)
    assert (await run(stage, SESSION)).status == 429
    assert (store.picked, store.told) == ([], [])
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)


async def test_explain_reads_a_session_and_changes_nothing() -> None:
    store = FakeSessions({KEY: Opened(KEY, "ja", {"qwen-chat": "cloud-b"})})
    stage = Stage(sessions=store, snapshot=two_regions())
    told = await stage.path.explain(json.dumps(HELLO).encode(), SESSION, stage.table.tenants[0])
    assert told["reason"].startswith("cloud-b") and told["session_store"] == "kept"
    assert (store.picked, store.told) == ([], [])


STRENGTHS = a_table(agents={"qwen-chat": agent("qwen-chat", strength=14), "qwen-doc": agent("qwen-doc", strength=72)})
LONG = "word " * 500


def agents(stage: Stage) -> list[str]:
    return [target.agent for target, _ in stage.agents.calls]


async def test_a_session_that_went_to_a_stronger_agent_comes_back_late() -> None:
    stage = Stage(table=STRENGTHS, sessions=FakeSessions())
    for text in ("hello", LONG, "thanks", "and this?", "bye"):
        assert (await run(stage, SESSION, text)).status == 200
    assert agents(stage) == ["qwen-chat", "qwen-doc", "qwen-doc", "qwen-doc", "qwen-chat"]
    said = [(r.rule, r.agent, r.rule_reason) for r in stage.journal.records[2:]]
    assert said == [
        *(
            (
                "fallback",
                "qwen-doc",
                "matched everything; the session stays with qwen-doc, which is stronger than qwen-chat "
                f"(turn {turn} of 2)",
            )
            for turn in (1, 2)
        ),
        ("fallback", "qwen-chat", "matched everything"),
    ]


async def test_who_names_an_agent_or_has_no_session_is_not_held() -> None:
    store = FakeSessions({KEY: Opened(KEY, "en", held=Held("qwen-doc"))})
    stage = Stage(table=STRENGTHS, sessions=store)
    await run(stage, SESSION, model="qwen-chat")
    await run(stage, BEARER)
    assert agents(stage) == ["qwen-chat"] * 2
    assert store.known[KEY].held == Held("qwen-doc")
    # Nor where the stronger one is out, or not for this tenant.
    tenant = replace(STRENGTHS.tenants[0], agents=frozenset({"qwen-chat"}))
    out = two_regions(STRENGTHS)
    sick = tuple(replace(t, health="ejected") if t.agent == "qwen-doc" else t for t in out.targets)
    for made in (
        Stage(table=replace(STRENGTHS, tenants=(tenant,)), sessions=store),
        Stage(table=STRENGTHS, sessions=store, snapshot=replace(out, targets=sick)),
    ):
        store.known[KEY] = Opened(KEY, "en", held=Held("qwen-doc"))
        assert (await run(made, SESSION)).status == 200
        assert agents(made) == ["qwen-chat"]


async def test_explain_tells_that_a_session_stays_with_a_stronger_agent_and_changes_nothing() -> None:
    store = FakeSessions({KEY: Opened(KEY, "en", held=Held("qwen-doc", 1))})
    stage = Stage(table=STRENGTHS, sessions=store)
    for _ in range(2):
        told = await stage.path.explain(json.dumps(HELLO).encode(), SESSION, stage.table.tenants[0])
        assert (told["agent"], told["rule"]) == ("qwen-doc", "fallback")
        assert told["rule_reason"].endswith(
            "the session stays with qwen-doc, which is stronger than qwen-chat (turn 2 of 2)"
        )
    assert store.told == []
