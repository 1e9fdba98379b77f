"""The request path against scripted agents: what the client gets, what is recorded, what is cancelled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve_app.core.language import LanguageGuess
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Timeouts
from serve_app.openai_api import Sending
from serve_app.ports import Accepted, Body, Failure, Head, Tail
from serve_app.request_path import Answer
from tests.path_fakes import GOOD, KEY, OPERATOR_KEY, FakeDetector, Stage, a_table, agent, failed

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
HEADERS = {"authorization": f"Bearer {KEY}"}


async def run(stage: Stage, body: Any = HELLO, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stage.path.run("chat", raw, HEADERS if headers is None else headers, "r1")


async def text(answer: Answer) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b"".join([b async for b in answer.body])


def error(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer.body, bytes)
    told: dict[str, Any] = json.loads(answer.body)["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


async def test_a_request_end_to_end() -> None:
    stage = Stage()
    answer = await run(stage)
    assert (answer.status, await text(answer)) == (200, b'{"ok":1}')
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


async def test_template_and_callers_system_message_both_stay() -> None:
    stage = Stage()
    await run(stage, {"messages": [{"role": "system", "content": "Be brief."}, *HELLO["messages"]]})
    assert stage.agents.calls[0][1].body["messages"][0] == {"role": "system", "content": "Be kind.\n\nBe brief."}


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
        ({**HELLO, "prompt_logprobs": -1}, 400, "unknown_parameter", "prompt_logprobs"),
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


async def test_a_cut_emoji_becomes_a_replacement_character() -> None:
    stage = Stage()
    answer = await run(stage, b'{"messages":[{"role":"user","content":"gute Idee \\ud83e"}]}')
    assert answer.status == 200
    assert stage.detector.texts == ["gute Idee \ufffd"]


async def test_null_and_empty_parts_become_empty_text_and_parts_are_joined() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    stage = Stage()
    await run(
        stage,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "¿Qué hora es?"}, {"type": "text", "text": "Gracias"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
                {"role": "assistant", "content": [], "tool_calls": [call]},
            ]
        },
    )
    assert stage.agents.calls[0][1].body["messages"][1:] == [
        {"role": "user", "content": "¿Qué hora es?\nGracias"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a.txt", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


async def test_the_budget_grows_only_where_nobody_capped_it() -> None:
    stage = Stage(detector=FakeDetector(LanguageGuess("ja", "Jpan", 0.99, "script", "ja")))
    await run(stage)
    await run(stage, {**HELLO, "max_tokens": 50})
    await run(stage, {**HELLO, "max_tokens": 65535})
    assert [call.max_tokens for _, call in stage.agents.calls] == [160, 50, 1000]


async def test_a_detector_that_fails_costs_the_language_not_the_answer() -> None:
    stage = Stage(detector=FakeDetector(failed("upstream_failed")))
    answer = await run(stage)
    assert (answer.status, answer.headers["x-grix-language"]) == (200, "und")


async def test_a_session_keeps_its_language_for_its_own_tenant_only() -> None:
    stage = Stage(detector=FakeDetector(LanguageGuess("ja", "Jpan", 0.99, "script", "ja")))
    await run(stage, headers={**HEADERS, "x-session-id": "s1"})
    stage.detector.guess = failed("upstream_failed")
    again = await run(stage, headers={**HEADERS, "x-session-id": "s1"})
    other = await run(stage, headers={"authorization": f"Bearer {OPERATOR_KEY}", "x-session-id": "s1"})
    assert [a.headers["x-grix-language"] for a in (again, other)] == ["ja", "und"]


async def test_an_operator_may_pin_the_release_that_is_served() -> None:
    operator = {"authorization": f"Bearer {OPERATOR_KEY}"}
    assert (await run(Stage(), {**HELLO, "model": "qwen-doc@abcdef"}, operator)).status == 200
    assert (await run(Stage(), {**HELLO, "model": "qwen-doc@999"}, operator)).status == 404


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
    stage = Stage(scripts=[(failed("upstream_failed"),)])
    for _ in range(40):
        await run(stage)
    # 10 saved at first, which is the most there can be, and a fifth of a retry earned by each of 39 more requests.
    assert len(stage.agents.calls) == 40 + 17


async def test_back_pressure_is_told_and_not_repeated() -> None:
    stage = Stage(scripts=[(failed("overloaded"),)])
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")
    assert len(stage.agents.calls) == 1


async def test_an_engines_refusal_is_the_clients_error() -> None:
    refused = (Accepted("t", "r"), Head(failure=Failure("context_length", "too long", "messages")), Tail("failed"))
    stage = Stage(scripts=[refused])
    answer = await run(stage)
    assert (answer.status, error(answer)["code"], error(answer)["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert len(stage.agents.calls) == 1


async def test_nothing_is_sent_before_the_first_token_even_for_a_stream() -> None:
    stage = Stage(scripts=[(failed("no_target"),)])
    answer = await run(stage, {**HELLO, "stream": True})
    assert (answer.status, error(answer)["code"]) == (503, "no_target")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_stream_that_breaks_ends_in_band_without_done() -> None:
    stage = Stage(
        scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), failed("upstream_failed", "lost"))]
    )
    answer = await run(stage, {**HELLO, "stream": True})
    got = await text(answer)
    head, _, rest = got.partition(b"\n\n")
    assert (answer.status, head) == (200, b"data: 1")
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
    assert b"[DONE]" not in got
    (record,) = stage.journal.records
    assert (record.outcome, record.error, len(stage.agents.calls)) == ("failed", "upstream_failed", 1)


async def test_a_whole_answer_that_breaks_is_a_502() -> None:
    stage = Stage(
        scripts=[(Accepted("t", "r"), Head(max_tokens=9), Tail("failed", failure=Failure("upstream_failed", "x")))]
    )
    assert (await run(stage)).status == 502


async def test_a_call_that_ends_without_a_tail_is_a_failure() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"{}"))])
    assert (await run(stage)).status == 502


async def test_limits_end_a_call_that_hangs() -> None:
    instant = Timeouts(queue_s=0.0, first_byte_s=0.0)
    one = a_table(agents={"qwen-chat": agent("qwen-chat", timeouts=instant), "qwen-doc": agent("qwen-doc")})
    queued = Stage(table=one, scripts=[("hang",)])
    answer = await run(queued)
    assert (answer.status, error(answer)["code"]) == (503, "queue_timeout")
    assert queued.agents.closed <= len(queued.agents.calls)


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


async def test_an_empty_fleet_is_a_503_with_retry_after() -> None:
    stage = Stage(snapshot=Snapshot(0, 1, ()))
    answer = await run(stage)
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")


async def test_residency_fails_closed() -> None:
    tenants = tuple(t for t in a_table().tenants)
    eu_only = a_table(tenants=(type(tenants[0])("acme", tenants[0].keys, frozenset({"eu"})),))
    stage = Stage(table=eu_only)
    answer = await run(stage)
    assert (answer.status, error(answer)["code"]) == (403, "residency")
    narrowed = await run(Stage(), headers={**HEADERS, "x-data-class": "eu"})
    assert narrowed.status == 403


async def test_headers_shorten_limits_and_bad_ones_are_named() -> None:
    answer = await run(Stage(), headers={**HEADERS, "x-grix-total-timeout": "5"})
    assert (answer.status, error(answer)["param"]) == (400, "x-grix-total-timeout")


async def test_explain_decides_and_runs_nothing() -> None:
    stage = Stage(detector=FakeDetector(LanguageGuess("ja", "Jpan", 0.99, "script", "ja")))
    body = {**HELLO, "metadata": {"task_type": "customer_service"}}
    told = await stage.path.explain(json.dumps(body).encode(), {}, stage.table.tenants[1])
    assert (told["rule"], told["template"], told["budget"]["max_tokens"]) == ("ja-service", "ja v2", 160)
    assert told["rules"][:2] == [
        {"rule": "ja-service", "result": "matches"},
        {"rule": "long-doc", "result": "prompt of about 10 tokens is not above 400"},
    ]
    assert stage.agents.calls == [] and stage.journal.records == []


async def test_a_bug_of_ours_has_a_record() -> None:
    stage = Stage(detector=FakeDetector(RuntimeError("bug")))
    with pytest.raises(RuntimeError):
        await run(stage)
    assert [(r.error, r.status, r.outcome) for r in stage.journal.records] == [("internal", 500, "failed")]


async def test_a_client_that_leaves_while_the_status_is_sent_ends_the_call() -> None:
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")])
    raw = json.dumps({**HELLO, "stream": True}).encode()
    sending = Sending(stage.path.run("chat", raw, HEADERS, "r1"))

    async def gone(message: Any) -> None:
        raise OSError("the client has left")

    async def nothing() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(OSError, match="left"):
        await sending({"type": "http"}, nothing, gone)
    assert stage.agents.closed == 1
    assert [r.outcome for r in stage.journal.records] == ["client_left"]


async def test_a_number_too_large_is_refused_wherever_it_stands() -> None:
    raw = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"x":1e999}]}'
    answer = await run(Stage(), raw)
    assert (answer.status, error(answer)["param"]) == (400, "tools")
