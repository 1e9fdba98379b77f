"""Requests that broke other gateways and engines, at the real engine: never a 5xx, and the engine lives on."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import LiveRegion
from tests.e2e.test_openai_fields import raw_stream
from tests.e2e.test_region import engine_pids, eventually, record

CHAT = "/v1/chat/completions"
CONTEXT = 4096
TOOL_CALL = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def say(region: LiveRegion, *messages: Any, **fields: Any) -> tuple[int, dict[str, str], Any]:
    headers = fields.pop("headers", None)
    return region.ask("POST", CHAT, {"messages": list(messages), "max_tokens": 8, "temperature": 0, **fields}, headers)


def refused(answer: tuple[int, dict[str, str], Any], param: str | None, status: int = 400) -> dict[str, Any]:
    """The envelope of a refusal that names its field."""
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"].startswith("application/json")
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param, body
    assert body["error"]["message"] and "Traceback" not in body["error"]["message"]
    return dict(body["error"])


@pytest.fixture(autouse=True)
def engine_lives_on(region: LiveRegion) -> Any:
    before = engine_pids(region)
    yield
    assert engine_pids(region) == before


def test_req_01_no_messages(region: LiveRegion) -> None:
    mark = f"req-01-{time.monotonic_ns()}"
    error = refused(say(region, headers={"x-request-id": mark}), "messages")
    assert error["type"] == "invalid_request_error"
    found = eventually(lambda: record(region, mark), 5.0, "the request is recorded")
    assert (found["attempts"], found["language"]) == ([], None)


def test_req_02_a_system_message_alone(region: LiveRegion) -> None:
    status, headers, body = say(region, {"role": "system", "content": "Be brief."})
    assert status == 200, body
    assert headers["x-grix-language"] == "und"


@pytest.mark.parametrize("content", [[], "", " ", [{"type": "text", "text": ""}]])
def test_req_03_an_empty_user_turn(region: LiveRegion, content: Any) -> None:
    status, headers, body = say(region, user(content))
    assert status == 200, body
    assert headers["x-grix-language"] == "und"


def prompt_tokens(region: LiveRegion, *messages: Any, **fields: Any) -> int:
    status, _, body = say(region, *messages, **fields)
    assert status == 200, body
    return int(body["usage"]["prompt_tokens"])


@pytest.mark.parametrize("nothing", [None, "", []], ids=["null", "empty", "no-parts"])
def test_req_04_and_07_nothing_beside_a_tool_call_is_nothing(region: LiveRegion, nothing: Any) -> None:
    def turns(content: Any) -> list[dict[str, Any]]:
        call = {"role": "assistant", "content": content, "tool_calls": [TOOL_CALL]}
        return [user("add 2 and 2"), call, {"role": "tool", "tool_call_id": "c9", "content": "4"}]

    # The word None in the prompt would be more tokens.
    assert prompt_tokens(region, *turns(nothing)) == prompt_tokens(region, *turns(""))
    without = {k: v for k, v in turns("")[1].items() if k != "content"}
    assert prompt_tokens(region, turns("")[0], without, turns("")[2]) == prompt_tokens(region, *turns(""))


def test_req_08_parts_are_text(region: LiveRegion) -> None:
    parts = [{"type": "text", "text": "¿Qué hora es?"}, {"type": "text", "text": "Gracias"}]
    kind = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    status, headers, body = say(region, kind, user(parts))
    assert (status, headers["x-grix-language"]) == (200, "es"), body
    joined = prompt_tokens(region, {"role": "system", "content": "Be kind."}, user("¿Qué hora es?\nGracias"))
    assert body["usage"]["prompt_tokens"] == joined


CUT = [b'"gute Idee \\ud83e"', b'"\\ude00"', b'["\\ud83e"]', b'[{"type":"text","text":"\\ud83e"}]', b'"\\ud83e\\ud83e"']


@pytest.mark.parametrize("content", CUT)
@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_req_09_a_cut_emoji_is_no_failure(region: LiveRegion, content: bytes, stream: bytes) -> None:
    mark = f"req-09-{time.monotonic_ns()}"
    raw = b'{"max_tokens":4,"stream":%s,"messages":[{"role":"user","content":%s}]}' % (stream, content)
    status, _, body = region.ask("POST", CHAT, raw, {"x-request-id": mark})
    assert status in (200, 400), body
    found = eventually(lambda: record(region, mark), 5.0, "the request is recorded")
    assert found["outcome"] in ("success", "rejected")
    assert len(found["attempts"]) == (1 if status == 200 else 0)


def test_req_09_a_cut_emoji_elsewhere(region: LiveRegion) -> None:
    cut = b"\\ud83e"
    for field in (b'"stop":"%s"', b'"user":"%s"', b'"metadata":{"session_id":"%s"}', b'"model":"%s"', b'"%s":1'):
        raw = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,' + field % cut + b"}"
        status, _, body = region.ask("POST", CHAT, raw)
        assert status in (200, 400, 404), (field, body)


@pytest.mark.parametrize("model", ["qwen-chat", "qwen-doc", "edge-chat"])
def test_req_14_a_cap_over_the_window_is_clamped_and_told(region: LiveRegion, model: str) -> None:
    half = "hello " * (CONTEXT // 4)
    status, headers, body = say(region, user(half), model=model, max_tokens=65535, stop=["."])
    assert status == 200, body
    assert int(headers["x-grix-max-tokens"]) == CONTEXT - body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_req_15_a_prompt_over_the_window(region: LiveRegion, stream: bool) -> None:
    error = refused(say(region, user("hello " * CONTEXT), max_tokens=512, stream=stream), "messages")
    assert error["code"] == "context_length_exceeded"
    assert "-" not in error["message"].split("leaves")[1].split("for the answer")[0]


def test_req_16_a_prompt_that_just_fits_gets_what_is_left(region: LiveRegion) -> None:
    one = prompt_tokens(region, user("hello"))
    each = prompt_tokens(region, user("hello hello")) - one
    fits = "hello" + " hello" * ((CONTEXT - one - 1) // each)
    used = prompt_tokens(region, user(fits), max_tokens=7000)
    assert 1 <= CONTEXT - used <= each
    left = CONTEXT - used
    status, headers, body = say(region, user(fits), max_tokens=7000)
    assert (status, int(headers["x-grix-max-tokens"]), body["usage"]["completion_tokens"] <= left) == (200, left, True)
    error = refused(say(region, user(fits + " hello" * 2), max_tokens=1), "messages")
    assert error["code"] == "context_length_exceeded"


def test_req_21_too_many_biases(region: LiveRegion) -> None:
    error = refused(say(region, user("hi"), logit_bias={str(i): 1 for i in range(2000)}), "logit_bias")
    assert "300" in error["message"]


@pytest.mark.parametrize("field", ["prompt_logprobs", "allowed_token_ids", "use_beam_search", "vllm_xargs"])
def test_req_23_engine_only_extras_are_not_part_of_the_api(region: LiveRegion, field: str) -> None:
    refused(say(region, user("hi"), **{field: -1}), field)


def test_req_25_no_model(region: LiveRegion) -> None:
    assert say(region, user("Hello!"))[0] == 200
    assert say(region, user("Hello!"), model=None)[0] == 200


def test_req_26_every_layer_speaks_one_envelope(region: LiveRegion) -> None:
    assert refused(say(region, user("hi"), model="no-such-model"), "model", 404)["code"] == "model_not_found"
    secret = "my private words"
    error = refused(region.ask("POST", CHAT, {"model": "auto", "messages": user(secret)}), "messages")
    assert secret not in json.dumps(error)
    refused(region.ask("POST", "/v1/nowhere", {}), None, 404)
    refused(region.ask("PUT", CHAT, {}), None, 405)


def test_str_06_and_08_usage_is_counted_once(region: LiveRegion) -> None:
    mark = f"str-06-{time.monotonic_ns()}"
    body = {"messages": [user("hi")], "stream": True, "max_tokens": 8, "n": 2}
    *events, _ = raw_stream(region, {**body, "stream_options": {"include_usage": True}})
    told = [json.loads(e)["usage"] for e in events if json.loads(e).get("usage")]
    assert len(told) == 1
    quiet = {**body, "stream_options": {"include_usage": False}}
    status, _, raw = region.ask("POST", CHAT, quiet, {"x-request-id": mark})
    assert status == 200 and b'"usage":{' not in raw and b'"choices":[]' not in raw
    found = eventually(lambda: record(region, mark), 5.0, "the request is recorded")
    assert found["prompt_tokens"] == told[0]["prompt_tokens"]
    assert 2 <= found["completion_tokens"] <= 16


# --- More of the kind: what is legal in JSON and deadly in an engine.

DEADLY: list[tuple[str, dict[str, Any]]] = [
    ("a-bias-outside-the-vocabulary", {"logit_bias": {"999999999": 5}}),
    ("a-stop-token-outside-the-vocabulary", {"stop_token_ids": [999_999_999]}),
    ("a-schema-that-is-none", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": 7}}}}),
    ("a-schema-that-refers-to-itself", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}}}),
    ("a-pattern-that-is-none", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}}}}),
    ("a-pattern-with-look-behind", {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}}}}}),
    ("tools-with-a-schema-that-is-none", {"tools": [{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}}],
        "tool_choice": "required"}),
    ("more-least-tokens-than-fit", {"min_tokens": 100_000, "max_tokens": 200_000}),
    ("a-temperature-near-nothing", {"temperature": 1e-30}),
    ("a-top-p-near-nothing", {"temperature": 1, "top_p": 1e-9}),
    ("a-large-negative-seed", {"seed": -(2**63)}),
    ("all-penalties-at-once", {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": 2}),
    ("sixteen-choices-with-all-logprobs", {"n": 16, "logprobs": True, "top_logprobs": 20, "temperature": 1}),
    ("a-stop-of-one-space", {"stop": [" ", "\n", "\ufffd", "\u200b"]}),
    ("true-for-a-number", {"max_tokens": True}),
    ("a-number-in-text", {"temperature": "0.5"}),
    ("a-list-for-a-model", {"model": ["auto"]}),
    ("null-everywhere", dict.fromkeys(("model", "stop", "seed", "tools", "tool_choice", "logit_bias"))),
]  # fmt: skip


@pytest.mark.parametrize("fields", [f for _, f in DEADLY], ids=[name for name, _ in DEADLY])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_more_request_a_deadly_field_is_answered_or_refused(
    region: LiveRegion, fields: dict[str, Any], stream: bool
) -> None:
    status, headers, body = say(region, user("hi"), stream=stream, **fields)
    assert status in (200, 400), body
    if status == 400:
        refused((status, headers, body), body["error"]["param"])
    elif stream:
        assert body.endswith(b"data: [DONE]\n\n"), body
    assert say(region, user("hello"))[0] == 200


PROMPTS: list[Any] = [[999_999_999], [-1], [2**40], [0] * CONTEXT, "\x00", "\ufeff", "<|im_end|>" * 99, "e\u0301" * 99]


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_more_request_a_deadly_prompt_is_answered_or_refused(region: LiveRegion, prompt: Any) -> None:
    status, _, body = region.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2})
    assert status in (200, 400), body
    if status == 400:
        assert body["error"]["type"] == "invalid_request_error"


TURNS: list[tuple[str, list[Any]]] = [
    ("an-answer-last", [user("hi"), {"role": "assistant", "content": "Hel"}]),
    ("an-answer-first", [{"role": "assistant", "content": "Hello"}, user("hi")]),
    ("two-users-in-a-row", [user("hi"), user("are you there?")]),
    ("a-system-in-the-middle", [user("hi"), {"role": "system", "content": "Be brief."}, user("hi")]),
    ("a-tool-answer-to-no-call", [user("hi"), {"role": "tool", "tool_call_id": "zzz", "content": "4"}]),
    ("arguments-cut-short", [user("add"), {"role": "assistant", "content": None, "tool_calls": [
        {**TOOL_CALL, "function": {"name": "add", "arguments": '{"a":'}}]},
        {"role": "tool", "tool_call_id": "c9", "content": "4"}]),
    ("arguments-that-are-none", [user("add"), {"role": "assistant", "tool_calls": [
        {**TOOL_CALL, "function": {"name": "add", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c9", "content": "4"}]),
    ("a-thousand-turns", [user("a"), {"role": "assistant", "content": "b"}] * 500),
    ("a-developer", [{"role": "developer", "content": "Be brief."}, user("hi")]),
    ("control-characters", [user("a\x00b\x1b[31mc\u202e\u2028d")]),
    ("template-words", [user("{{ messages }} {% for x in y %} {# #}")]),
]  # fmt: skip


@pytest.mark.parametrize("turns", [t for _, t in TURNS], ids=[name for name, _ in TURNS])
def test_more_request_an_odd_conversation_is_answered_or_refused(region: LiveRegion, turns: list[Any]) -> None:
    status, _, body = say(region, *turns)
    assert status in (200, 400), body


KINDS = ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]


@pytest.mark.parametrize("kind", KINDS)
def test_more_request_the_content_type_is_not_what_decides(region: LiveRegion, kind: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(region.url).netloc, timeout=60)
    headers = {"authorization": f"Bearer {region.key}", **({"content-type": kind} if kind else {})}
    connection.request("POST", CHAT, json.dumps({"messages": [user("hi")], "max_tokens": 2}), headers)
    answer = connection.getresponse()
    assert (answer.status, "error" in json.loads(answer.read())) in ((200, False), (415, True), (400, True))
    connection.close()
