"""A short text in doubt is shown to an agent once, if the table names one; whatever goes wrong keeps the guess."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app import language
from serve_app.core.language import LanguageGuess
from serve_app.core.table import Table, Tenant, TenantKey
from serve_app.core.tenants import hash_key
from serve_app.language import CONFIRM_LIMIT_S, CONFIRM_TOKENS
from serve_app.ports import Accepted, AgentCall, Body, Head, Tail, Usage
from serve_app.request_path import Answer
from tests.fakes import BEARER, GOOD, KEY, FakeDetector, Stage, Step, a_table, failed, refused, two_regions

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


@pytest.mark.parametrize(
    "script",
    [
        says("fr"),
        says("I think it is Japanese."),
        says(""),
        says(None),
        says(["ja"]),
        (Accepted("t", "r"), Head(), Body(b"no json"), Tail("success")),
        (Accepted("t", "r"), Head(), Body(b'{"choices": []}'), Tail("success")),
        (Accepted("t", "r"), Head(), Body(b"[]"), Tail("success")),
        (),
        refused("overloaded"),
        (failed("no_target"),),
        (Accepted("t", "r"), failed("replica_lost")),
    ],
)
async def test_whatever_fails_keeps_the_guess(script: tuple[Step, ...]) -> None:
    stage = stage_of(script)
    await run(stage)
    assert told(stage) == ("id", "model", "fallback", 0.55)
    assert len(asked(stage)) == 1
    # It is no attempt of the request, and no failure of its target.
    (record,) = stage.journal.records
    assert [attempt["result"] for attempt in record.attempts] == ["started"]


@pytest.mark.parametrize("script", [("hang",), (Accepted("t", "r"), "hang"), (Accepted("t", "r"), Head(), "hang")])
async def test_who_is_late_is_not_waited_for(script: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "CONFIRM_LIMIT_S", 0.01)
    stage = stage_of(script)
    await run(stage)
    assert told(stage) == ("id", "model", "fallback", 0.55)
    assert len(asked(stage)) == 1


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
