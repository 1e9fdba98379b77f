"""The hard inputs of a gateway, sent down the whole path: exact status, envelope and record, and never a 500."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.language import LanguageGuess
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Tenant, Timeouts
from serve_app.ports import Accepted, Body, Failure, Head, Tail
from serve_app.request_path import Answer
from tests.fakes import BEARER, HELLO, OPERATOR, STREAMED, Step, refused, two_regions
from tests.path_fakes import GOOD, FakeDetector, Stage, a_table, agent

TOOL_CALL = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
JAPANESE = LanguageGuess("ja", "Jpan", 0.99, "script", "ja")


async def run(stage: Stage, body: Any = HELLO, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stage.path.run("chat", raw, BEARER if headers is None else headers, "r1")


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
    ("english", "requested", "wanted"), [(False, 50, 50), (True, 50, 80), (True, None, 160), (True, 900, 1000)]
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


async def test_residency_is_told_with_its_own_status() -> None:
    eu = Tenant("acme", a_table().tenants[0].keys, frozenset({"eu"}))
    stage = Stage(table=a_table(tenants=(eu,)))
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], error(answer)["type"]) == (403, "residency", "permission_error")
    assert "retry-after" not in answer.headers
    assert answer.headers["x-grix-region"] == "cloud-a"
    assert stage.agents.calls == []


async def test_rte_04a_an_empty_fleet_is_a_503_that_invites_a_retry() -> None:
    stage = Stage(snapshot=Snapshot(0, 1, ()))
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, error(answer)["code"], answer.headers["retry-after"]) == (503, "no_target", "5")
    assert [(r.outcome, r.error, r.attempts) for r in stage.journal.records] == [("rejected", "no_target", [])]


async def test_rte_22_what_the_engine_knows_about_when_to_come_back_is_told() -> None:
    stage = Stage(scripts=[refused("overloaded", retry_after_s=3.0)])
    answer = await run(stage)
    assert (answer.status, answer.headers["retry-after"], stage.clock.slept_s) == (503, "3", [])


async def test_rte_24_back_pressure_is_a_rejection_and_no_failure() -> None:
    stage = Stage(scripts=[refused("overloaded")], snapshot=two_regions())
    answer = await run(stage)
    (record,) = stage.journal.records
    assert (answer.status, record.outcome, record.error) == (503, "rejected", "overloaded")
    assert [a["target"][:7] for a in record.attempts] == ["cloud-a", "cloud-b"]


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


async def test_str_03_an_error_instead_of_the_first_token_moves_to_the_other_region() -> None:
    stage = Stage(scripts=[refused("upstream_failed"), STREAMED], snapshot=two_regions())
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, answer.headers["x-grix-region"]) == (200, "cloud-b")
    assert await chunks(answer) == [b"data: 1\n\n", b"data: [DONE]\n\n"]
    (record,) = stage.journal.records
    assert (record.target, record.outcome) == ("cloud-b/qwen-chat@abcdef12", "success")


async def test_str_05_a_stream_commits_nothing_before_its_first_token() -> None:
    stage = Stage(scripts=[refused("no_target")])
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, answer.headers["content-type"]) == (503, "application/json")
    assert "x-accel-buffering" not in answer.headers


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


@pytest.mark.parametrize("name", ["queue", "first-byte", "total"])
async def test_a_limit_that_cannot_be_read_is_named(name: str) -> None:
    stage = Stage()
    answer = await run(stage, headers={**BEARER, f"x-grix-{name}-timeout": "soon"})
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


async def test_the_tenants_priority_and_the_callers_trace_travel() -> None:
    tenant = replace(a_table().tenants[0], priority=120)
    stage = Stage(table=a_table(tenants=(tenant,)))
    await run(stage, {**HELLO, "priority": 1}, {**BEARER, "traceparent": "00-a-b-01"})
    assert stage.agents.calls[0][1].priority == 120
    assert stage.journal.records[0].traceparent == "00-a-b-01"
