"""The request path against scripted agents: what the client gets, what the engine is sent, what is recorded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.asgi import respond
from serve_app.core.language import LanguageGuess
from serve_app.core.retry import RetryBudget
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Tenant, Timeouts
from serve_app.ports import Accepted, Body, Failure, Head, Tail
from serve_app.replies import Answer
from tests.fakes import (
    BEARER,
    GOOD,
    HELLO,
    OPERATOR,
    STREAMED,
    FakeDetector,
    Stage,
    Step,
    a_table,
    agent,
    failed,
    refused,
    two_regions,
)

TOOL_CALL = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
JAPANESE = LanguageGuess("ja", "Jpan", 0.99, "script", "ja")


async def run(stage: Stage, body: Any = HELLO, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stage.run(raw, headers)


def error(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer.body, bytes)
    assert answer.headers["content-type"] == "application/json"
    told: dict[str, Any] = json.loads(answer.body)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


def sent(stage: Stage) -> list[dict[str, Any]]:
    """Messages of the one call, without the template's."""
    ((_, call),) = stage.agents.calls
    messages: list[dict[str, Any]] = call.body["messages"]
    return messages[1:]


async def chunks(answer: Answer) -> list[bytes]:
    assert not isinstance(answer.body, bytes)
    return [data async for data in answer.body]


async def test_a_request_end_to_end() -> None:
    stage = Stage()
    answer = await run(stage)
    assert (answer.status, answer.body) == (200, b'{"ok":1}')
    assert answer.headers == {
        "x-grix-region": "cloud-a",
        "x-grix-agent": "qwen-chat",
        "x-grix-release": "abcdef123456",
        "x-grix-language": "en",
        "x-grix-rule": "fallback",
        "x-grix-hops": "0",
        "x-grix-max-tokens": "64",
        "content-type": "application/json",
    }
    target, call = stage.agents.calls[0]
    assert target.id == "cloud-a/qwen-chat@abcdef12"
    assert call.body == {"messages": [{"role": "system", "content": "Be kind."}, *HELLO["messages"]]}
    assert (call.max_tokens, call.priority, call.enqueued_unix_s) == (100, 100, 1_800_000_100.0)
    (record,) = stage.journal.records
    assert (record.outcome, record.status, record.prompt_tokens, record.completion_tokens) == ("success", 200, 7, 3)
    assert (record.queue_wait_ms, record.first_token_ms, record.finish_reason) == (1.5, 4.5, "stop")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({}, 400, "invalid_value", "messages"),
        ({"messages": {"role": "user"}}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "invalid_value", "messages[0].content"),
        ({**HELLO, "model": "no-such-model"}, 404, "model_not_found", "model"),
        ({**HELLO, "model": "qwen-chat@abc"}, 403, "not_allowed", "model"),
        ({**HELLO, "max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({**HELLO, "max_tokens": True}, 400, "invalid_value", "max_tokens"),
        ({**HELLO, "temperature": 9}, 400, "invalid_value", "temperature"),
        ({**HELLO, "n": 10**6}, 400, "invalid_value", "n"),
        ({**HELLO, "logit_bias": {str(i): 1 for i in range(2000)}}, 400, "invalid_value", "logit_bias"),
        ({**HELLO, "prompt_logprobs": -1}, 400, "unsupported_parameter", "prompt_logprobs"),
        ({**HELLO, "stream_options": {}}, 400, "invalid_value", "stream_options"),
        ({**HELLO, "metadata": {"session_id": 7}}, 400, "invalid_value", "metadata.session_id"),
        (b"{not json", 400, "invalid_value", "body"),
        (b'{"temperature": NaN}', 400, "invalid_value", "body"),
        (b"\xff\xfe", 400, "invalid_value", "body"),
        (b"[" * 100_000, 400, "invalid_value", "body"),
        (b"x" * (8 * 1024 * 1024 + 1), 413, "request_too_large", None),
    ],
)
async def test_a_bad_request_stops_before_anything_runs(body: Any, status: int, code: str, param: str | None) -> None:
    stage = Stage()
    answer = await run(stage, body)
    told = error(answer)
    assert (answer.status, told["code"], told["param"]) == (status, code, param)
    assert stage.agents.calls == []
    assert [r.outcome for r in stage.journal.records] == ["rejected"]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("Bearer ", "missing_api_key"),
        ("Basic x", "missing_api_key"),
        ("Bearer no", "invalid_api_key"),
    ],
)
async def test_strangers_are_refused_before_their_body_is_read(header: str | None, code: str) -> None:
    stage = Stage()
    answer = await run(stage, b"{not json", {"authorization": header} if header else {})
    assert (answer.status, error(answer)["code"]) == (401, code)
    assert stage.detector.texts == []


async def test_a_number_too_large_is_refused_wherever_it_stands() -> None:
    raw = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"x":1e999}]}'
    answer = await run(Stage(), raw)
    assert (answer.status, error(answer)["param"]) == (400, "tools")


async def test_a_bug_of_ours_has_a_record() -> None:
    stage = Stage(detector=FakeDetector(RuntimeError("bug")))
    with pytest.raises(RuntimeError):
        await run(stage)
    assert [(r.error, r.status, r.outcome) for r in stage.journal.records] == [("internal", 500, "failed")]


async def test_req_01_no_messages_reach_neither_detector_nor_engine() -> None:
    stage = Stage()
    answer = await run(stage, {"model": "auto", "messages": []})
    assert answer.status == 400
    assert error(answer) == {
        "message": "messages: must hold at least one message.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "invalid_value",
    }
    assert (stage.detector.texts, stage.agents.calls) == ([], [])


async def test_req_02_a_system_message_alone_is_legal_and_has_no_text_to_detect() -> None:
    stage = Stage()
    assert (await run(stage, {"model": "auto", "messages": [{"role": "system", "content": "Be brief."}]})).status == 200
    assert stage.detector.texts == [""]
    assert stage.agents.calls[0][1].body["messages"] == [{"role": "system", "content": "Be kind.\n\nBe brief."}]


async def test_req_03_an_empty_list_of_parts_is_an_empty_turn() -> None:
    stage = Stage()
    assert (await run(stage, {"messages": [{"role": "user", "content": []}]})).status == 200
    assert (sent(stage), stage.detector.texts) == ([{"role": "user", "content": ""}], [""])


async def test_req_04_and_07_tool_turns_keep_order_and_ids_and_never_say_none() -> None:
    stage = Stage()
    body = {
        "messages": [
            {"role": "user", "content": "add 2 and 2"},
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "tool_call_id": "c9", "content": "4"},
            {"role": "assistant", "content": [], "tool_calls": [TOOL_CALL]},
            {"role": "assistant"},
        ]
    }
    assert (await run(stage, body)).status == 200
    assert sent(stage) == [
        {"role": "user", "content": "add 2 and 2"},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "c9"},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
        {"role": "assistant", "content": ""},
    ]


async def test_parts_of_a_user_turn_are_joined_and_detected_as_one_text() -> None:
    stage = Stage()
    parts = [{"type": "text", "text": "¿Qué hora es?"}, {"type": "text", "text": "Gracias"}]
    await run(stage, {"messages": [{"role": "user", "content": parts}]})
    assert sent(stage) == [{"role": "user", "content": "¿Qué hora es?\nGracias"}]
    assert stage.detector.texts == ["¿Qué hora es?\nGracias"]


async def test_req_08_system_parts_are_joined_into_the_templates_message() -> None:
    stage = Stage()
    parts = [{"type": "text", "text": "You are kind."}, {"type": "text", "text": "And brief."}]
    await run(stage, {"messages": [{"role": "system", "content": parts}, *HELLO["messages"]]})
    first = stage.agents.calls[0][1].body["messages"][0]
    assert first == {"role": "system", "content": "Be kind.\n\nYou are kind.\nAnd brief."}


async def test_two_system_messages_are_both_kept_in_their_places() -> None:
    stage = Stage()
    system = [{"role": "system", "content": "One."}, {"role": "system", "content": "Two."}]
    await run(stage, {"messages": [*system, *HELLO["messages"], {"role": "system", "content": "Three."}]})
    assert stage.agents.calls[0][1].body["messages"] == [
        {"role": "system", "content": "Be kind.\n\nOne."},
        {"role": "system", "content": "Two."},
        *HELLO["messages"],
        {"role": "system", "content": "Three."},
    ]


async def test_req_09_a_cut_emoji_reaches_the_engine_as_one_replacement_character() -> None:
    stage = Stage()
    answer = await run(stage, b'{"model":"auto","messages":[{"role":"user","content":"gute Idee \\ud83e"}]}')
    assert (answer.status, sent(stage)[0]["content"], len(stage.agents.calls)) == (200, "gute Idee \ufffd", 1)
    assert stage.detector.texts == ["gute Idee \ufffd"]


async def test_req_14_a_cap_over_the_window_is_clamped_and_told() -> None:
    stage = Stage()
    answer = await run(stage, {**HELLO, "max_tokens": 65535})
    assert (answer.status, stage.agents.calls[0][1].max_tokens) == (200, 1000)
    assert answer.headers["x-grix-max-tokens"] == "64"
    (record,) = stage.journal.records
    assert record.budget == {
        "max_tokens": 1000,
        "requested": 65535,
        "ratio": 1.0,
        "reason": "the caller's cap, cut to what the context leaves",
    }
    assert record.max_tokens == 64


async def test_req_15_a_prompt_that_is_too_long_is_the_clients_error_and_is_tried_once() -> None:
    refusal = (Accepted("t", "r"), Head(failure=Failure("context_length", "9000 > 1000", "messages")))
    stage = Stage(scripts=[refusal], snapshot=two_regions())
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], error(answer)["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert (len(stage.agents.calls), stage.journal.records[0].outcome) == (1, "rejected")


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": "auto"}])
async def test_req_25_no_model_is_auto(model: dict[str, Any]) -> None:
    answer = await run(Stage(), {**HELLO, **model})
    assert (answer.status, answer.headers["x-grix-rule"]) == (200, "fallback")


async def test_req_26_unknown_models_are_told_apart_and_their_name_is_not_repeated() -> None:
    stage = Stage()
    answer = await run(stage, {**HELLO, "model": "no-such-model"})
    told = error(answer)
    assert (answer.status, told["code"], told["type"], told["param"]) == (
        404,
        "model_not_found",
        "invalid_request_error",
        "model",
    )
    assert "no-such-model" not in told["message"]
    both = await run(stage, {"model": "no-such-model", "messages": HELLO["messages"][0]})
    assert (both.status, error(both)["param"]) == (400, "messages")


@pytest.mark.parametrize("model", ["", "@", "auto@abcdef", "@abcdef", "QWEN-CHAT", "qwen-chat ", "\ud83e", "x" * 200])
async def test_odd_model_names_are_a_404(model: str) -> None:
    assert (await run(Stage(), {**HELLO, "model": model})).status == 404


async def test_an_alias_is_called_by_its_own_name() -> None:
    borrowed = agent("qwen-doc", engine_agent="qwen-chat", app="qwen-chat--12345678")
    stage = Stage(table=a_table(agents={"qwen-chat": agent("qwen-chat"), "qwen-doc": borrowed}))
    answer = await run(stage, {**HELLO, "model": "qwen-doc"})
    target, call = stage.agents.calls[0]
    assert (target.app, call.model, answer.headers["x-grix-agent"]) == ("qwen-chat--12345678", "qwen-doc", "qwen-doc")
    assert (answer.headers["x-grix-rule"], stage.journal.records[0].rule_reason) == (
        "by-name",
        "model names agent qwen-doc",
    )


async def test_only_operators_pin_a_release() -> None:
    pinned = {**HELLO, "model": "qwen-chat@abcdef123456"}
    refusal = await run(Stage(), pinned)
    assert (refusal.status, error(refusal)["code"], error(refusal)["type"]) == (403, "not_allowed", "permission_error")
    assert (await run(Stage(), pinned, OPERATOR)).headers["x-grix-release"] == "abcdef123456"
    assert (await run(Stage(), {**HELLO, "model": "qwen-doc@abcdef"}, OPERATOR)).status == 200
    gone = await run(Stage(), {**HELLO, "model": "qwen-chat@0000"}, OPERATOR)
    assert (gone.status, error(gone)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("hint", "model", "agent_name"),
    [("qwen-doc", "auto", "qwen-doc"), ("no-such", "auto", "qwen-chat"), ("qwen-doc", "qwen-chat", "qwen-chat")],
)
async def test_a_hint_is_a_wish(hint: str, model: str, agent_name: str) -> None:
    body = {**HELLO, "model": model, "metadata": {"route_hint": hint}}
    assert (await run(Stage(), body)).headers["x-grix-agent"] == agent_name


@pytest.mark.parametrize(
    ("english", "requested", "wanted"),
    [
        (False, None, 160),
        (False, 50, 50),
        (False, 65535, 1000),
        (True, 50, 80),
        (True, None, 160),
        (True, 900, 1000),
    ],
)
async def test_an_english_budget_grows_with_the_language_up_to_the_context(
    english: bool, requested: int | None, wanted: int
) -> None:
    tenant = replace(a_table().tenants[0], budget="english" if english else "as-is")
    stage = Stage(table=a_table(tenants=(tenant,)), detector=FakeDetector(JAPANESE))
    await run(stage, {**HELLO, "max_tokens": requested})
    assert stage.agents.calls[0][1].max_tokens == wanted


async def test_the_language_header_wins_over_the_detector_and_is_checked() -> None:
    stage = Stage()
    answer = await run(stage, headers={**BEARER, "x-language": "ja"})
    assert (answer.headers["x-grix-language"], stage.detector.texts) == ("ja", [])
    assert stage.journal.records[0].language_source == "header"
    bad = await run(stage, headers={**BEARER, "x-language": "tlh"})
    assert error(bad)["message"] == "x-language: is not a language of this service; known: en, id, ja, th."
    assert (bad.status, error(bad)["param"]) == (400, "x-language")


async def test_the_detector_is_asked_about_the_last_user_turn() -> None:
    stage = Stage()
    turns = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "a"}]
    await run(stage, {"messages": [*turns, {"role": "user", "content": "last"}, {"role": "assistant", "content": "b"}]})
    assert stage.detector.texts == ["last"]


async def test_a_detector_that_fails_costs_the_language_not_the_answer() -> None:
    stage = Stage(detector=FakeDetector(failed("upstream_failed")))
    answer = await run(stage)
    assert (answer.status, answer.headers["x-grix-language"]) == (200, "und")


async def test_a_session_keeps_its_language_for_its_own_tenant_only() -> None:
    stage = Stage(detector=FakeDetector(JAPANESE))
    await run(stage, headers={**BEARER, "x-session-id": "s1"})
    stage.detector.guess = failed("upstream_failed")
    again = await run(stage, headers={**BEARER, "x-session-id": "s1"})
    other = await run(stage, headers={**OPERATOR, "x-session-id": "s1"})
    assert [a.headers["x-grix-language"] for a in (again, other)] == ["ja", "und"]


async def test_explain_decides_and_runs_nothing() -> None:
    stage = Stage(detector=FakeDetector(JAPANESE))
    body = {**HELLO, "metadata": {"task_type": "customer_service"}}
    told = await stage.path.explain(json.dumps(body).encode(), {}, stage.table.tenants[1])
    assert (told["rule"], told["template"], told["budget"]["max_tokens"]) == ("ja-service", "ja v2", 160)
    assert told["rules"][:2] == [
        {"rule": "ja-service", "result": "matches"},
        {"rule": "long-doc", "result": "prompt of about 10 tokens is not above 400"},
    ]
    assert stage.agents.calls == [] and stage.journal.records == []


async def test_residency_is_told_with_its_own_status() -> None:
    eu = Tenant("acme", a_table().tenants[0].keys, frozenset({"eu"}))
    stage = Stage(table=a_table(tenants=(eu,)))
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], error(answer)["type"]) == (403, "residency", "permission_error")
    assert "retry-after" not in answer.headers
    assert answer.headers["x-grix-region"] == "cloud-a"
    assert stage.agents.calls == []


async def test_a_data_class_narrows_where_a_request_may_go() -> None:
    answer = await run(Stage(), headers={**BEARER, "x-data-class": "eu"})
    assert (answer.status, error(answer)["code"]) == (403, "residency")


WAITED = Head(max_tokens=64, queued=True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("scripts", "queued"),
    [
        ([()], False),
        ([(WAITED,)], True),
        # Turned away for want of a place, then answered by another region, or by the same one later.
        ([refused("overloaded"), ()], True),
        ([(failed("queue_timeout"),), ()], True),
        ([refused("overloaded", retry_after_s=1.0), ()], True),
        # A fault is no want of places.
        ([(failed("upstream_failed"),), ()], False),
        ([(failed("no_target"),), ()], False),
    ],
)
async def test_an_answer_says_that_its_request_waited_for_capacity(
    scripts: list[tuple[Step, ...]], queued: bool, stream: bool
) -> None:
    good = STREAMED if stream else GOOD
    played = [good if not s else (good[0], *s, *good[2:]) if s[0] is WAITED else s for s in scripts]
    stage = Stage(scripts=played, snapshot=two_regions())
    answer = await run(stage, {**HELLO, "stream": stream})
    assert answer.status == 200
    assert answer.headers.get("x-grix-queued") == ("1" if queued else None)
    if not isinstance(answer.body, bytes):
        assert [data async for data in answer.body][-1] == b"data: [DONE]\n\n"
    (record,) = stage.journal.records
    assert record.queued is queued


@pytest.mark.parametrize("stream", [True, False])
async def test_rte_04a_an_empty_fleet_is_a_503_that_invites_a_retry(stream: bool) -> None:
    stage = Stage(snapshot=Snapshot(0, 1, ()))
    answer = await run(stage, {**HELLO, "stream": stream})
    assert (answer.status, error(answer)["code"], answer.headers["retry-after"]) == (503, "no_target", "5")
    assert [(r.outcome, r.error, r.attempts) for r in stage.journal.records] == [("rejected", "no_target", [])]


async def test_rte_22_what_the_engine_knows_about_when_to_come_back_is_told() -> None:
    stage = Stage(scripts=[refused("overloaded", retry_after_s=3.0)])
    answer = await run(stage)
    assert (answer.status, answer.headers["retry-after"], stage.clock.slept_s) == (503, "3", [3.0, 3.0])


async def test_rte_24_back_pressure_is_a_rejection_and_no_failure() -> None:
    stage = Stage(scripts=[refused("overloaded")], snapshot=two_regions())
    answer = await run(stage)
    (record,) = stage.journal.records
    assert (answer.status, record.outcome, record.error) == (503, "rejected", "overloaded")
    assert [a["target"][:7] for a in record.attempts] == ["cloud-a", "cloud-b"]


async def test_rte_25_a_full_queue_is_told_with_an_envelope_and_not_repeated() -> None:
    stage = Stage(scripts=[(failed("overloaded"),)])
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
    assert len(stage.agents.calls) == 1


async def test_a_lost_replica_is_tried_again_twice_with_back_off() -> None:
    lost = (failed("upstream_failed"),)
    stage = Stage(scripts=[lost, lost, GOOD])
    answer = await run(stage)
    assert answer.status == 200
    assert stage.clock.slept_s == [0.5, 1.5]
    assert [a["result"] for a in stage.journal.records[0].attempts] == ["upstream_failed", "upstream_failed", "started"]


async def test_three_attempts_are_all() -> None:
    stage = Stage(scripts=[(failed("upstream_failed"),)])
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], len(stage.agents.calls)) == (502, "upstream_failed", 3)


async def test_the_retry_budget_ends_retries() -> None:
    stage = Stage(scripts=[(failed("no_target"),)])
    for _ in range(40):
        await run(stage)
    # 10 saved at first, which is the most there can be, and a fifth of a retry earned by each of 39 more requests.
    assert len(stage.agents.calls) == 40 + 17


async def test_everything_that_a_lost_region_leaves_without_a_first_byte_moves_at_once() -> None:
    """However many these are, and whatever retries have cost before."""
    lost, nothing = (failed("replica_lost"),), RetryBudget(saved=0.0)
    stage = Stage(scripts=[lost, GOOD] * 4, snapshot=two_regions(), budget=nothing)
    assert {(await run(stage)).status for _ in range(4)} == {200}
    assert stage.budget.saved == pytest.approx(0.8)


async def test_str_01_a_stream_cut_after_three_chunks_ends_in_one_error_event() -> None:
    cut: tuple[Step, ...] = (Accepted("t", "r"), Head(max_tokens=9), *(Body(b"data: %d\n\n" % i) for i in range(3)))
    stage = Stage(scripts=[cut, GOOD], snapshot=two_regions())
    got = await chunks(await run(stage, {**HELLO, "stream": True}))
    assert got[:3] == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    assert len(got) == 4
    assert json.loads(got[3].removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
    (record,) = stage.journal.records
    assert (record.outcome, record.status, record.error, record.finish_reason) == (
        "failed",
        200,
        "upstream_failed",
        None,
    )
    assert (len(stage.agents.calls), stage.agents.closed) == (1, 1)


async def test_a_stream_that_breaks_ends_in_band_without_done() -> None:
    stage = Stage(
        scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), failed("upstream_failed", "lost"))]
    )
    answer = await run(stage, {**HELLO, "stream": True})
    got = b"".join(await chunks(answer))
    head, _, rest = got.partition(b"\n\n")
    assert (answer.status, head) == (200, b"data: 1")
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
    assert b"[DONE]" not in got
    (record,) = stage.journal.records
    assert (record.outcome, record.error, len(stage.agents.calls)) == ("failed", "upstream_failed", 1)


async def test_str_03_an_error_instead_of_the_first_token_moves_to_the_other_region() -> None:
    stage = Stage(scripts=[refused("upstream_failed"), STREAMED], snapshot=two_regions())
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, answer.headers["x-grix-region"]) == (200, "cloud-b")
    assert await chunks(answer) == [b"data: 1\n\n", b"data: [DONE]\n\n"]
    (record,) = stage.journal.records
    assert (record.target, record.outcome) == ("cloud-b/qwen-chat@abcdef12", "success")


@pytest.mark.parametrize("script", [refused("no_target"), (failed("no_target"),)], ids=["told", "raised"])
async def test_str_05_a_stream_commits_nothing_before_its_first_token(script: tuple[Step, ...]) -> None:
    stage = Stage(scripts=[script])
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, answer.headers["content-type"]) == (503, "application/json")
    assert "x-accel-buffering" not in answer.headers
    assert (error(answer)["code"], int(answer.headers["retry-after"]) >= 1) == ("no_target", True)


async def test_a_stream_past_its_total_limit_ends_in_band() -> None:
    limits = Timeouts(total_s=5.0)
    table = a_table(agents={"qwen-chat": agent("qwen-chat", timeouts=limits), "qwen-doc": agent("qwen-doc")})
    stage = Stage(table=table, scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")])
    answer = await run(stage, {**HELLO, "stream": True})
    stage.clock.time_s += 5.0
    got = await chunks(answer)
    assert got[0] == b"data: 1\n\n" and len(got) == 2
    assert json.loads(got[1].removeprefix(b"data: "))["error"]["code"] == "total_timeout"
    (record,) = stage.journal.records
    assert (record.outcome, record.error, record.total_ms, stage.agents.closed) == (
        "evicted",
        "total_timeout",
        5000.0,
        1,
    )


async def test_a_whole_answer_past_its_total_limit_is_a_504() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), "hang")])
    answer = await run(stage, headers={**BEARER, "x-grix-total-timeout": "1ms"})
    assert (answer.status, error(answer)["code"], error(answer)["type"]) == (504, "total_timeout", "timeout_error")
    assert [r.outcome for r in stage.journal.records] == ["evicted"]
    assert stage.agents.closed == 1


async def test_a_failed_attempt_does_not_lengthen_the_total_limit() -> None:
    stage = Stage(scripts=[refused("upstream_failed")])
    answer = await run(stage, headers={**BEARER, "x-grix-total-timeout": "1s"})
    assert (answer.status, stage.clock.slept_s, len(stage.agents.calls)) == (502, [0.5], 2)


async def test_limits_end_a_call_that_hangs() -> None:
    instant = Timeouts(queue_s=0.0, first_byte_s=0.0)
    one = a_table(agents={"qwen-chat": agent("qwen-chat", timeouts=instant), "qwen-doc": agent("qwen-doc")})
    queued = Stage(table=one, scripts=[("hang",)])
    answer = await run(queued)
    assert (answer.status, error(answer)["code"]) == (503, "queue_timeout")
    assert queued.agents.closed <= len(queued.agents.calls)


@pytest.mark.parametrize("name", ["queue", "first-byte", "total"])
@pytest.mark.parametrize("value", ["soon", "5"])
async def test_a_limit_that_cannot_be_read_is_named(name: str, value: str) -> None:
    stage = Stage()
    answer = await run(stage, headers={**BEARER, f"x-grix-{name}-timeout": value})
    assert (answer.status, error(answer)["param"]) == (400, f"x-grix-{name}-timeout")
    assert stage.agents.calls == []


async def test_a_client_cancelled_in_the_middle_of_a_stream_is_recorded_once() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")])
    task = asyncio.ensure_future(chunks(await run(stage, {**HELLO, "stream": True})))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.agents.closed == 1
    assert [(r.outcome, r.error) for r in stage.journal.records] == [("client_left", None)]


async def test_a_client_that_leaves_closes_the_call_and_is_recorded_once() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")])
    answer = await run(stage, {**HELLO, "stream": True})
    assert not isinstance(answer.body, bytes)
    assert await anext(answer.body) == b"data: 1\n\n"
    await answer.body.aclose()
    assert stage.agents.closed == 1
    assert [r.outcome for r in stage.journal.records] == ["client_left"]


async def test_a_client_that_leaves_before_the_first_token_cancels_too() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), "hang")])
    task = asyncio.ensure_future(run(stage))
    while not stage.agents.calls:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.agents.closed == 1
    assert [r.outcome for r in stage.journal.records] == ["client_left"]


async def test_a_client_that_leaves_while_the_status_is_sent_ends_the_call() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")])
    raw = json.dumps({**HELLO, "stream": True}).encode()

    async def gone(message: Any) -> None:
        raise OSError("the client has left")

    async def nothing() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(OSError, match="left"):
        await respond(stage.run(raw), nothing, gone)
    assert stage.agents.closed == 1
    assert [r.outcome for r in stage.journal.records] == ["client_left"]


async def test_a_client_that_leaves_a_whole_answer_is_recorded_once() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"x"), "hang")])
    task = asyncio.ensure_future(run(stage))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.agents.closed == 1
    assert [r.outcome for r in stage.journal.records] == ["client_left"]


async def test_closing_a_finished_stream_again_records_nothing_more() -> None:
    stage = Stage(scripts=[STREAMED])
    answer = await run(stage, {**HELLO, "stream": True})
    await chunks(answer)
    assert not isinstance(answer.body, bytes)
    await answer.body.aclose()
    assert [r.outcome for r in stage.journal.records] == ["success"]
    assert stage.agents.closed == 1


async def test_wait_and_total_are_measured_from_arrival_with_retries() -> None:
    stage = Stage(scripts=[refused("upstream_failed"), GOOD])
    await run(stage)
    (record,) = stage.journal.records
    assert (record.wait_ms, record.total_ms, record.queue_wait_ms, record.first_token_ms) == (500.0, 500.0, 1.5, 4.5)


async def test_an_engine_that_ends_badly_after_its_head_is_a_502_with_what_it_measured() -> None:
    failure = Failure("upstream_invalid", "choices is empty")
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Tail("failed", failure=failure))])
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], error(answer)["type"]) == (
        502,
        "upstream_invalid_response",
        "upstream_error",
    )
    assert [(r.outcome, r.error) for r in stage.journal.records] == [("failed", "upstream_invalid")]


@pytest.mark.parametrize(
    "end", [(Tail("failed", failure=Failure("upstream_failed", "x")),), (Body(b"{}"),)], ids=["told", "no tail"]
)
async def test_a_whole_answer_that_breaks_is_a_502(end: tuple[Step, ...]) -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), *end)])
    assert (await run(stage)).status == 502


@pytest.mark.parametrize(("priority", "to_engine"), [(120, 10), (5, 5)])
async def test_an_engine_has_batch_work_behind_people(priority: int, to_engine: int) -> None:
    stage = Stage(table=a_table(tenants=(replace(a_table().tenants[0], priority=priority),)))
    await run(stage, HELLO, {**BEARER, "x-task-type": "batch"})
    assert stage.agents.calls[0][1].priority == to_engine


async def test_the_tenants_priority_and_the_callers_trace_travel() -> None:
    tenant = replace(a_table().tenants[0], priority=120)
    stage = Stage(table=a_table(tenants=(tenant,)))
    await run(stage, {**HELLO, "priority": 1}, {**BEARER, "traceparent": "00-a-b-01"})
    assert stage.agents.calls[0][1].priority == 120
    assert stage.journal.records[0].traceparent == "00-a-b-01"
