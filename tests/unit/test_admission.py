"""Limits on the way of a request: what is asked, what a client is told, and that everything comes back at the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.admission import Admission
from serve_app.core.admission import Ask, Spent
from serve_app.core.table import AdmissionRules, Table, Tenant, TenantKey, TenantLimits
from serve_app.core.tenants import KeyIndex, hash_key
from serve_app.edge.limits import HELD_GUESS_S
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import Grant
from serve_app.request_path import Answer
from tests.fakes import BEARER, GOOD, HELLO, KEY, STREAMED, FakeAgents, Stage, Step, a_table, refused, settle

TRACES = [f"00-{digit * 32}-00f067aa0ba902b7-01" for digit in "12"]
#: The estimate of HELLO and of the template's words, and the agent's default for an English answer.
HELLO_TOKENS, DEFAULT_TOKENS = 10 + 11, 100


def limited(*, batch_share: float = 0.5, per_root: int = 16, priority: int = 100, **limits: int) -> Table:
    tenant = replace(a_table().tenants[0], limits=TenantLimits(**limits), priority=priority)
    return a_table(tenants=(tenant,), admission=AdmissionRules(batch_share, 50, per_root))


def stage_of(made: Table, *scripts: tuple[Step, ...]) -> Stage:
    return Stage(table=made, scripts=list(scripts) or [GOOD])


async def run(stage: Stage, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return await stage.run(json.dumps({**HELLO, **fields}).encode(), {**BEARER, **(headers or {})})


def told(answer: Answer) -> tuple[int, str, str | None]:
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body)["error"]["type"], answer.headers.get("retry-after")


def asked(stage: Stage) -> list[Ask]:
    return [grant.ask for grant in stage.limits.live.values()]


async def hanging(stage: Stage, headers: dict[str, str] | None = None, **fields: Any) -> asyncio.Task[Answer]:
    """A request whose engine does not answer yet."""
    before = len(stage.agents.calls)
    task = asyncio.ensure_future(run(stage, headers, **fields))
    await settle(lambda: len(stage.agents.calls) > before or task.done())
    return task


async def leave(*tasks: asyncio.Task[Answer]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_refused_request_reaches_no_engine_and_is_recorded() -> None:
    stage = stage_of(limited(requests_per_minute=2))
    assert [(await run(stage)).status for _ in range(2)] == [200, 200]
    assert told(await run(stage)) == (429, "requests", "30")
    assert len(stage.agents.calls) == 2
    record = stage.journal.records[-1]
    assert (record.outcome, record.error, record.status, record.key_id) == ("rejected", "requests_limit", 429, "k1")
    assert (record.limits_by, record.attempts, record.agent) == (None, [], "qwen-chat")
    stage.clock.time_s += 30.0
    assert (await run(stage)).status == 200


async def test_tokens_are_reserved_for_every_choice_and_settled_by_the_tail() -> None:
    stage = stage_of(limited(tokens_per_minute=1_000), ("hang",))
    task = await hanging(stage, n=3)
    assert [a.tokens for a in asked(stage)] == [HELLO_TOKENS + 3 * DEFAULT_TOKENS]
    await leave(task)
    stage = stage_of(limited(tokens_per_minute=HELLO_TOKENS + DEFAULT_TOKENS))
    # The tail says 7 and 3, so the next waits for 10 of 121 a minute.
    assert (await run(stage)).status == 200
    assert told(await run(stage)) == (429, "tokens", "5")
    record = stage.journal.records[0]
    assert (record.limits_by, record.tokens_reserved) == ("router", HELLO_TOKENS + DEFAULT_TOKENS)


@pytest.mark.parametrize("script", [refused("overloaded"), refused("context_length"), (RuntimeError("a bug"),)])
async def test_what_never_started_gives_all_back(script: tuple[Step, ...]) -> None:
    stage = stage_of(limited(requests_per_minute=1, tokens_per_minute=150, concurrent=1), script, GOOD)
    try:
        assert (await run(stage)).status >= 400
    except RuntimeError as error:
        assert str(error) == "a bug"
    assert asked(stage) == []
    assert (await run(stage)).status == 200


@pytest.mark.parametrize(
    "broken", [b"{", b'{"messages": []}', b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}']
)
async def test_a_bad_request_touches_no_limit(broken: bytes) -> None:
    stage = stage_of(limited(requests_per_minute=1))
    for _ in range(3):
        assert 400 <= (await stage.run(broken)).status < 500
    assert (await run(stage)).status == 200


async def test_slots_are_held_to_the_end_of_a_stream_and_come_back_when_the_client_leaves() -> None:
    stage = stage_of(limited(concurrent=1, tokens_per_minute=1_000), STREAMED)
    answer = await run(stage, stream=True)
    assert not isinstance(answer.body, bytes)
    assert await anext(answer.body)
    assert told(await run(stage)) == (429, "concurrency", "1")
    await answer.body.aclose()
    # Nobody counted what it used: the reservation stays.
    assert stage.limits._buckets["acme"][1].level == 1_000 - HELLO_TOKENS - DEFAULT_TOKENS  # type: ignore[union-attr]
    second = await run(stage, stream=True)
    assert not isinstance(second.body, bytes)
    assert [data async for data in second.body][-1] == b"data: [DONE]\n\n"
    assert asked(stage) == []


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    stage = stage_of(limited(concurrent=1, requests_per_minute=1), ("hang",), GOOD)
    task = await hanging(stage)
    assert told(await run(stage))[1] in ("concurrency", "requests")
    await leave(task)
    assert asked(stage) == []
    assert (await run(stage)).status == 200


@pytest.mark.parametrize(
    ("one", "other"),
    [({"traceparent": TRACES[0]}, {"traceparent": TRACES[1]}), ({"x-session-id": "a"}, {"x-session-id": "b"})],
)
async def test_one_trace_or_session_does_not_take_all_slots(one: dict[str, str], other: dict[str, str]) -> None:
    stage = stage_of(limited(per_root=2), ("hang",))
    held = [await hanging(stage, one), await hanging(stage, one)]
    assert told(await run(stage, one)) == (429, "concurrency", "1")
    held += [await hanging(stage, other), await hanging(stage)]
    assert len(asked(stage)) == 4
    await leave(*held)
    assert asked(stage) == []


async def test_batch_work_leaves_slots_to_people() -> None:
    stage = stage_of(limited(batch_share=0.5), ("hang",))
    batch = {"x-task-type": "batch"}
    held = [await hanging(stage, batch), await hanging(stage, batch)]
    status, kind, later = told(await run(stage, batch))
    assert (status, kind, later) == (503, "overloaded_error", "1")
    held.append(await hanging(stage))
    assert len(stage.agents.calls) == 3
    await leave(*held)
    low = stage_of(limited(batch_share=0.25, priority=10), ("hang",))
    held = [await hanging(low)]
    assert told(await run(low))[0] == 503
    await leave(*held)


async def test_a_key_that_is_replaced_stops_working_and_its_stream_goes_on() -> None:
    stage = stage_of(limited(concurrent=2), STREAMED, GOOD)
    index = [KeyIndex.of(stage.table.tenants)]
    stage.path.keys = lambda: index[0]
    answer = await run(stage, stream=True)
    assert not isinstance(answer.body, bytes)
    first = await anext(answer.body)
    new = Tenant("acme", (TenantKey("k2", hash_key("grix-new")),), frozenset({"any"}))
    index[0] = KeyIndex.of([new])
    assert told(await run(stage))[0] == 401
    assert b"".join([first, *[data async for data in answer.body]]).endswith(b"[DONE]\n\n")
    other = await run(stage, {"authorization": "Bearer grix-new"})
    assert (other.status, stage.journal.records[-1].key_id) == (200, "k2")
    assert KEY != "grix-new" and asked(stage) == []


def rates(answer: Answer) -> dict[str, str]:
    return {n.removeprefix("x-ratelimit-"): v for n, v in answer.headers.items() if n.startswith("x-ratelimit-")}


async def test_an_answer_tells_what_is_left_in_openais_headers() -> None:
    stage = stage_of(limited(requests_per_minute=3, tokens_per_minute=1_000), GOOD, STREAMED)
    first, streamed = await run(stage), await run(stage, stream=True)
    assert rates(first) == {
        **{"limit-requests": "3", "remaining-requests": "2", "reset-requests": "20s"},
        # Its whole reservation is taken; what it does not use comes back at its end.
        **{"limit-tokens": "1000", "remaining-tokens": "879", "reset-tokens": "7.26s"},
    }
    # The first used 10 tokens.
    assert (rates(streamed)["remaining-requests"], rates(streamed)["remaining-tokens"]) == ("1", "869")
    assert rates(await run(stage_of(limited(requests_per_minute=3)))).keys() == {
        *("limit-requests", "remaining-requests", "reset-requests")
    }
    assert rates(await run(stage_of(a_table()))) == {}


async def test_a_refusal_tells_what_is_left_and_its_retry_after_is_of_the_same_bucket() -> None:
    stage = stage_of(limited(requests_per_minute=2, tokens_per_minute=1_000_000, concurrent=2), ("hang",))
    held = [await hanging(stage) for _ in range(2)]
    answer = await run(stage)
    assert told(answer) == (429, "requests", "30")
    assert {k: v for k, v in rates(answer).items() if "requests" in k} == {
        **{"limit-requests": "2", "remaining-requests": "0", "reset-requests": "1m0s"},
    }
    await leave(*held)
    slots = stage_of(limited(requests_per_minute=9, concurrent=1), ("hang",))
    held = [await hanging(slots)]
    answer = await run(slots)
    assert (told(answer)[1], rates(answer)["remaining-requests"]) == ("concurrency", "8")
    await leave(*held)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (refused("no_target"), "no_target"),
        (refused("overloaded"), "overloaded"),
        (refused("queue_timeout"), "queue_timeout"),
        (refused("first_byte_timeout"), "first_byte_timeout"),
        (refused("upstream_failed"), "upstream_failed"),
    ],
)
async def test_who_was_let_in_and_got_no_answer_is_told_what_is_left_too(script: tuple[Step, ...], reason: str) -> None:
    stage = stage_of(limited(requests_per_minute=3, tokens_per_minute=1_000), script)
    for _ in range(2):
        answer = await run(stage)
        assert stage.journal.records[-1].error == reason
        # Nothing ran, so all of it is there again.
        assert rates(answer) == {
            **{"limit-requests": "3", "remaining-requests": "3", "reset-requests": "0s"},
            **{"limit-tokens": "1000", "remaining-tokens": "1000", "reset-tokens": "0s"},
        }


@pytest.mark.parametrize("body", [{"messages": 7}, {"model": "gone"}])
async def test_who_was_never_let_in_is_told_no_allowances(body: dict[str, Any]) -> None:
    assert rates(await run(stage_of(limited(requests_per_minute=3)), **body)) == {}


def later(error: GrixError, draw: float = 0.0) -> str | None:
    stage = Stage()
    return Admission(lambda: stage.limits, stage.clock, lambda: draw).told_later(error).headers().get("retry-after")


SLOTS: tuple[Reason, ...] = ("concurrency_limit", "root_limit", "batch_limit")


def test_retry_after_is_worked_out_and_spread() -> None:
    assert HELD_GUESS_S == 1.0
    assert later(GrixError("overloaded", "x")) == "1"
    assert [later(GrixError("overloaded", "x"), draw) for draw in (0.49, 0.5, 0.99)] == ["1", "2", "2"]
    # So is what slots say: everybody who finds none free would come back at the same moment.
    for reason in SLOTS:
        told = [later(GrixError(reason, "x", retry_after_s=0.2), draw) for draw in (0.0, 0.49, 0.5, 0.99)]
        assert told == ["1", "1", "2", "2"]
    assert later(GrixError("requests_limit", "x", retry_after_s=50.0)) == "50"
    assert later(GrixError("requests_limit", "x", retry_after_s=50.0), 0.99) == "62"
    # A cool-down of 3 s is told as 3 to everybody.
    assert later(GrixError("no_target", "x", retry_after_s=3.0), 0.99) == "3"
    assert later(GrixError("bad_request", "x", retry_after_s=50.0)) is None
    # Nobody is there whose request could end.
    assert [later(GrixError("no_target", "x"), draw) for draw in (0.0, 0.99)] == ["5", "6"]


@pytest.mark.parametrize(("reason", "attempts"), [("overloaded", 1), ("replica_lost", 3)])
async def test_who_finds_no_place_is_told_when_an_average_request_has_ended(reason: str, attempts: int) -> None:
    stage = stage_of(a_table(), GOOD, refused(reason))
    agents: FakeAgents = stage.agents
    answer = await stage.limits.admit(Ask("acme", 1))
    assert isinstance(answer, Grant)
    stage.limits.settle(answer, Spent(True, 1, 61.0))
    assert (await run(stage)).status == 200
    status, _, later_s = told(await run(stage))
    assert (status, later_s) == (503, "7") and len(agents.calls) == 1 + attempts
