"""A short text in doubt is shown to an agent once, if the table names one; whatever goes wrong keeps the guess."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app import language
from serve_app.core.admission import BATCH_PRIORITY, Bucket
from serve_app.core.breaker import STREAK
from serve_app.core.language import LanguageGuess
from serve_app.core.snapshots import Load, Target
from serve_app.core.table import Table, Tenant, TenantKey, TenantLimits
from serve_app.core.tenants import hash_key
from serve_app.language import CONFIRM_LIMIT_S, CONFIRM_TOKENS, MOST_QUESTIONS
from serve_app.ports import Accepted, AgentCall, Body, Head, Tail, Usage
from serve_app.replies import Answer
from tests.fakes import BEARER, GOOD, KEY, FakeDetector, Stage, Step, a_table, failed, refused, settle, two_regions

DOUBT = LanguageGuess("id", "Latn", 0.55, "model", "id")
ASKED = {"messages": [{"role": "user", "content": "hai!"}], "metadata": {"task_type": "customer_service"}}


def table(confirm: str | None = "qwen-doc", **changes: Any) -> Table:
    made = a_table(**changes)
    return replace(made, languages=replace(made.languages, confirm=confirm))


def says(content: object) -> tuple[Step, ...]:
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
    # In two parts, and with the spaces that a model may put around.
    return (Accepted("t", "r"), Head(), Body(body[:9]), Body(body[9:]), Tail("success", "stop", Usage(20, 2)))


def stage_of(*scripts: tuple[Step, ...], guess: LanguageGuess = DOUBT, made: Table | None = None) -> Stage:
    made = made or table()
    return Stage(made, [*scripts, GOOD], FakeDetector(guess), snapshot=two_regions(made))


async def run(stage: Stage, body: Any = ASKED, headers: dict[str, str] | None = None) -> Answer:
    answer = await stage.run(json.dumps(body).encode(), None if headers is None else {**BEARER, **headers})
    assert answer.status == 200
    return answer


def told(stage: Stage) -> tuple[str | None, str | None, str | None, float | None]:
    (record,) = stage.journal.records
    return record.language, record.language_source, record.rule, record.confidence


def asked(stage: Stage) -> list[AgentCall]:
    """The questions: calls before the request's own."""
    calls = [call for _, call in stage.agents.calls]
    assert calls[-1].request_id == "r1" and stage.agents.closed == len(calls)
    return calls[:-1]


async def test_what_the_agent_says_is_the_language_and_the_rule_follows_it() -> None:
    stage = stage_of(says(" ja\n"))
    answer = await run(stage)
    assert told(stage) == ("ja", "confirmed", "ja-service", 0.55)
    assert answer.headers["x-grix-language"] == "ja"
    (call,) = asked(stage)
    assert call == AgentCall(
        request_id="r1-language",
        kind="chat",
        model="qwen-doc",
        body={
            "messages": [
                {"role": "system", "content": language.QUESTION.format("en, id, ja, th")},
                {"role": "user", "content": "hai"},
            ],
            "temperature": 0,
            "structured_outputs": {"choice": ["en", "id", "ja", "th"]},
        },
        stream=False,
        max_tokens=CONFIRM_TOKENS,
        priority=100,
        target="cloud-a/qwen-doc@abcdef12",
        release="abcdef123456" + "0" * 52,
        enqueued_unix_s=1_800_000_100.0,
        queue_s=CONFIRM_LIMIT_S,
    )
    # The request's own tokens are those of the answer, for the language that was confirmed.
    (record,) = stage.journal.records
    assert (record.prompt_tokens, record.completion_tokens) == (7, 3)
    assert record.budget is not None and record.budget["ratio"] == 1.6


async def test_an_agent_that_agrees_confirms() -> None:
    stage = stage_of(says("id"))
    await run(stage)
    assert told(stage) == ("id", "confirmed", "fallback", 0.55)
    assert stage.journal.records[0].language_question == "confirmed"


@pytest.mark.parametrize(
    ("script", "question"),
    [
        (says("fr"), "kept"),
        (says("I think it is Japanese."), "kept"),
        (says(""), "kept"),
        (says(None), "failed"),
        (says(["ja"]), "failed"),
        ((Accepted("t", "r"), Head(), Body(b"no json"), Tail("success")), "failed"),
        ((Accepted("t", "r"), Head(), Body(b'{"choices": []}'), Tail("success")), "failed"),
        ((Accepted("t", "r"), Head(), Body(b"[]"), Tail("success")), "failed"),
        ((), "failed"),
        (refused("overloaded"), "failed"),
        ((failed("no_target"),), "failed"),
        ((Accepted("t", "r"), failed("replica_lost")), "failed"),
    ],
)
async def test_whatever_fails_keeps_the_guess(script: tuple[Step, ...], question: str) -> None:
    stage = stage_of(script)
    await run(stage)
    assert told(stage) == ("id", "model", "fallback", 0.55)
    assert len(asked(stage)) == 1
    # It is no attempt of the request, and no failure of its target.
    (record,) = stage.journal.records
    assert [attempt["result"] for attempt in record.attempts] == ["started"]
    assert record.language_question == question


@pytest.mark.parametrize("script", [("hang",), (Accepted("t", "r"), "hang"), (Accepted("t", "r"), Head(), "hang")])
async def test_who_is_late_is_not_waited_for(script: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "CONFIRM_LIMIT_S", 0.01)
    stage = stage_of(script)
    await run(stage)
    assert told(stage) == ("id", "model", "fallback", 0.55)
    assert len(asked(stage)) == 1 and stage.journal.records[0].language_question == "late"


HERE = "cloud-a/qwen-doc@abcdef12"
SURE = replace(DOUBT, confidence=0.9)


def of_tenant(**changes: Any) -> Table:
    tenant = Tenant("acme", (TenantKey("k1", hash_key(KEY)),), frozenset({"any"}))
    return table(tenants=(replace(tenant, **changes),))


@pytest.mark.parametrize(
    ("guess", "made", "headers"),
    [
        # Off by default.
        (DOUBT, table(confirm=None), {}),
        (SURE, table(), {}),
        (DOUBT, table(), {"x-language": "id"}),
        # Not known here; not for this tenant.
        (DOUBT, table(confirm="qwen-coder"), {}),
        (DOUBT, of_tenant(agents=frozenset({"qwen-chat"})), {}),
    ],
    ids=["off", "sure", "said", "unknown", "not allowed"],
)
async def test_nobody_is_asked(guess: LanguageGuess, made: Table, headers: dict[str, str]) -> None:
    stage = stage_of(guess=guess, made=made)
    await run(stage, headers=headers)
    assert asked(stage) == [] and told(stage)[0] == "id"
    assert stage.journal.records[0].language_question is None


async def test_a_tenant_over_its_limits_has_no_question() -> None:
    stage = stage_of(says("ja"), made=of_tenant(limits=TenantLimits(requests_per_minute=1)))
    body = json.dumps(ASKED).encode()
    assert [(await stage.run(body)).status for _ in range(3)] == [200, 429, 429]
    assert [call.request_id for _, call in stage.agents.calls] == ["r1-language", "r1"]
    assert [r.language for r in stage.journal.records] == ["ja", "id", "id"]
    stage.clock.time_s += 60.0
    stage.agents.scripts = [*stage.agents.scripts, says("ja"), GOOD]
    await run(stage)
    assert [call.request_id for _, call in stage.agents.calls] == ["r1-language", "r1"] * 2


async def test_who_has_no_tokens_left_has_one_question_until_it_may_come_again() -> None:
    stage = stage_of(says("ja"), made=of_tenant(limits=TenantLimits(tokens_per_minute=150)))
    stage.limits._buckets["acme"] = (None, Bucket(0.0, stage.clock.time_s))
    body = json.dumps(ASKED).encode()
    assert [(await stage.run(body)).status for _ in range(3)] == [429] * 3
    assert [call.request_id for _, call in stage.agents.calls] == ["r1-language"]


async def test_a_router_has_no_more_questions_under_way_than_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "CONFIRM_LIMIT_S", 60.0)
    stage = stage_of(*[("hang",)] * MOST_QUESTIONS)
    body = json.dumps(ASKED).encode()
    waiting = [asyncio.create_task(stage.run(body)) for _ in range(MOST_QUESTIONS)]
    await settle(lambda: len(stage.agents.calls) == MOST_QUESTIONS)
    seen = stage.path.world().snapshot
    assert stage.targets.known(seen, 0.0).in_flight[HERE] == MOST_QUESTIONS
    await run(stage)
    assert told(stage) == ("id", "model", "fallback", 0.55)
    assert [call.request_id for _, call in stage.agents.calls][MOST_QUESTIONS:] == ["r1"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert stage.path.questions.under_way == 0
    assert stage.targets.known(seen, 0.0).in_flight[HERE] == 0


@pytest.mark.parametrize(
    ("priority", "headers", "wanted"),
    [(100, {}, 100), (100, {"x-task-type": "batch"}, BATCH_PRIORITY), (5, {"x-task-type": "batch"}, 5)],
)
async def test_a_question_is_as_important_as_its_request(priority: int, headers: dict[str, str], wanted: int) -> None:
    stage = stage_of(says("ja"), made=of_tenant(priority=priority))
    await run(stage, {"messages": ASKED["messages"]}, headers)
    assert [call.priority for _, call in stage.agents.calls] == [wanted, wanted]


def with_doc_here(**changes: Any) -> Stage:
    """A stage whose region has its own ``qwen-doc`` changed."""
    seen = two_regions(table())

    def as_told(target: Target) -> Target:
        return replace(target, **changes) if target.id == HERE else target

    return Stage(
        table(), [GOOD], FakeDetector(DOUBT), snapshot=replace(seen, targets=tuple(map(as_told, seen.targets)))
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"load": Load(oldest_wait_ms=60_000.0, queue_wait_p95_ms=60_000.0, waiting=9)},
        {"health": "stale", "runs": True},
        {"health": "slow"},
        {"drained": True},
        {"breaker": "open"},
        {"breaker": "probing"},
    ],
    ids=lambda c: str(next(iter(c))),
)
async def test_a_target_that_is_not_well_and_idle_is_not_asked(changes: dict[str, Any]) -> None:
    stage = with_doc_here(**changes)
    await run(stage)
    assert asked(stage) == []


async def test_the_probe_of_a_breaker_that_was_open_in_this_router_is_left_to_a_request() -> None:
    stage = with_doc_here(health="unknown", runs=True)
    for _ in range(STREAK):
        stage.breakers.failed(HERE, "upstream_failed", stage.clock.time_s)
    await run(stage)
    assert asked(stage) == []
    stage.clock.time_s += 3600.0
    stage.agents.calls.clear()
    stage.agents.closed = 0
    await run(stage)
    assert asked(stage) == []
    assert stage.breakers.begin(HERE, stage.clock.time_s) == "probe"


async def test_a_text_does_not_leave_the_region_for_it_or_enter_where_it_may_not_be() -> None:
    made = of_tenant(residency=frozenset({"eu"}))
    stage = stage_of(made=made)
    seen = stage.path.world().snapshot
    elsewhere = tuple(replace(t, residency=frozenset({"eu"})) if t.region == "cloud-b" else t for t in seen.targets)
    stage = Stage(made, [GOOD], FakeDetector(DOUBT), snapshot=replace(seen, targets=elsewhere))
    await run(stage)
    assert asked(stage) == [] and stage.agents.calls[0][0].region == "cloud-b"


async def test_an_agent_without_a_replica_is_not_woken() -> None:
    seen = two_regions(table())
    asleep = tuple(replace(t, health="unknown") if t.agent == "qwen-doc" else t for t in seen.targets)
    stage = Stage(table(), [GOOD], FakeDetector(DOUBT), snapshot=replace(seen, targets=asleep))
    await run(stage)
    assert asked(stage) == []
    # One that runs as this Router knows, whatever is reported, is asked.
    running = tuple(replace(t, runs=t.agent == "qwen-doc") for t in asleep)
    stage = Stage(table(), [says("ja"), GOOD], FakeDetector(DOUBT), snapshot=replace(seen, targets=running))
    await run(stage)
    assert len(asked(stage)) == 1


async def test_a_session_is_asked_about_once() -> None:
    body = {**ASKED, "metadata": {**ASKED["metadata"], "session_id": "s1"}}
    stage = stage_of(says("ja"))
    await run(stage, body)
    await run(stage, body)
    assert [call.request_id for _, call in stage.agents.calls] == ["r1-language", "r1", "r1"]


async def test_explain_asks_nobody() -> None:
    stage = stage_of()
    tenant = stage.table.tenants[0]
    explained = await stage.path.explain(json.dumps(ASKED).encode(), BEARER, tenant)
    assert (explained["language"], explained["language_source"]) == ("id", "model")
    assert stage.agents.calls == []
