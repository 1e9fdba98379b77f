"""Requests as bytes: what is honoured, refused with the field's name, or dropped on purpose."""

from __future__ import annotations

import json
import threading
from typing import Any
from unittest import mock

import pytest

from serve_app import openai_request
from serve_app.openai_fields import BY_KIND, names
from serve_app.openai_request import MAX_BODY_BYTES, MAX_NESTING, ParsedRequest, parse_body, parse_request
from serve_app.outcomes import GrixError
from serve_app.ports import Kind

HI = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "ls"}}


def chat(headers: dict[str, str] | None = None, **body: Any) -> ParsedRequest:
    return parse_request("chat", json.dumps({"messages": HI, **body}).encode(), headers or {})


def refusal(raw: bytes, kind: Kind = "chat") -> GrixError:
    with pytest.raises(GrixError) as caught:
        parse_request(kind, raw, {})
    return caught.value


def faulty(**body: Any) -> tuple[str, str | None]:
    error = refusal(json.dumps({"messages": HI, **body}).encode())
    assert error.status.http == 400
    return error.reason, error.param


def ls(arguments: Any) -> dict[str, Any]:
    return {"name": "ls", "arguments": arguments}


def called(**changes: Any) -> dict[str, Any]:
    """An assistant's message with one tool call."""
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}, **changes}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def schema_format(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, **changes}}


def test_a_parsed_request_keeps_what_an_engine_may_see() -> None:
    parsed = chat(model="auto", temperature=0.5, stop=["x"], max_tokens=9, stream=True, stream_options={})
    assert parsed == ParsedRequest(
        kind="chat",
        model="auto",
        body={"temperature": 0.5, "stop": ["x"], "stream_options": {}},
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        max_tokens=9,
        session_id=None,
        user_id=None,
        intent=None,
        data_class=None,
        route_hint=None,
        language=None,
        text_bytes=2,
    )


def test_the_bytes_of_all_text_are_counted_where_it_is_parsed() -> None:
    parts = [{"type": "text", "text": "返品"}, {"type": "text", "text": "ok"}]
    assert chat(messages=[{"role": "system", "content": "äb"}, {"role": "user", "content": parts}]).text_bytes == 3 + 9
    for prompt, size in (("返品", 6), (["返品"], 6), ([1, 2, 3], 0)):
        assert parse_request("completion", json.dumps({"prompt": prompt}).encode(), {}).text_bytes == size


@pytest.mark.parametrize("name", sorted(names("chat", "ignored") - {"modalities"}))
def test_platform_fields_are_dropped_whatever_they_hold(name: str) -> None:
    assert chat(**{name: [1, {"a": None}]}).body == {}


@pytest.mark.parametrize("name", ["guided_json", "temprature", "best_of", "input", ""])
def test_fields_outside_the_table_are_refused_by_name(name: str) -> None:
    assert faulty(**{name: -1}) == ("unknown_parameter", name)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_req_23_every_refused_field_says_why_and_null_is_not_given(kind: Kind) -> None:
    least: dict[str, Any] = {"messages": HI} if kind == "chat" else {"prompt": "x"}
    refused = names(kind, "refused")
    assert {"prompt_logprobs", "allowed_token_ids", "vllm_xargs"} <= refused
    for name in refused:
        error = refusal(json.dumps({**least, name: -1}).encode(), kind)
        assert (error.status.http, error.status.code, error.param) == (400, "unsupported_parameter", name)
        assert error.message == f"{name}: is not supported here: {BY_KIND[kind][name].note}."
        parse_request(kind, json.dumps({**least, name: None}).encode(), {})


def test_suffix_is_refused_by_name() -> None:
    assert refusal(b'{"prompt":"x","suffix":"y"}', "completion").param == "suffix"


def test_best_of_may_only_be_one() -> None:
    assert parse_request("completion", b'{"prompt":"x","best_of":1}', {}).body == {"prompt": "x"}
    assert refusal(b'{"prompt":"x","best_of":2}', "completion").param == "best_of"


def test_null_means_not_given() -> None:
    assert chat(temperature=None, tools=None, max_tokens=None, stream=None, stop=None, user=None).body == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", float(10**300)),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("top_k", -2),
        ("repetition_penalty", 0),
        ("presence_penalty", -2.1),
        ("frequency_penalty", 3),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("max_tokens", 2**53 + 1),
        ("max_completion_tokens", 0),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 17),
        ("seed", 2**63),
        ("seed", 0.5),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("logprobs", 1),
        ("logprobs", "yes"),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["5"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**31]),
        ("stop_token_ids", list(range(65))),
        ("stream", 1),
        ("stream", "true"),
        ("ignore_eos", 0),
        ("response_format", "json"),
        ("tools", {}),
        ("tools", []),
        ("tools", [TOOL] * 129),
        ("tool_choice", "auto"),
        ("tool_choice", "required"),
        ("tool_choice", "sometimes"),
        ("tool_choice", ["auto"]),
        ("tool_choice", 1),
        ("tool_choice", NAMED),
        ("parallel_tool_calls", "yes"),
        ("stop", [""]),
        ("stop", ""),
        ("stop", ["x"] * 17),
        ("stop", [1]),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("modalities", ["audio"]),
        ("stream_options", {"include_usage": True}),
        ("metadata", "x"),
        ("user", 5),
        ("model", 5),
        ("model", ["a"]),
        ("model", "x" * 201),
    ],
)
def test_a_value_out_of_range_names_its_field(name: str, value: Any) -> None:
    assert faulty(**{name: value}) == ("bad_request", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_k", -1),
        ("n", 16),
        ("seed", -(2**63)),
        ("logprobs", True),
        ("top_logprobs", 0),
        ("min_tokens", 5),
        ("stop_token_ids", [0, 2**31 - 1]),
        ("stop_token_ids", list(range(64))),
        ("tool_choice", "none"),
        ("tools", [TOOL] * 128),
        ("stop", "end"),
        ("stop", ["x"] * 16),
        ("logit_bias", {str(i): -100 for i in range(300)}),
        ("response_format", {"type": "text"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": None}}),
    ],
)
def test_values_at_the_edge_are_kept_as_they_are(name: str, value: Any) -> None:
    assert chat(**{name: value}).body == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("response_format", {}, "response_format.type"),
        ("response_format", {"type": "yaml"}, "response_format.type"),
        ("response_format", {"type": "structural_tag"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": []}, "response_format.json_schema"),
        ("response_format", schema_format(name=None), "response_format.json_schema.name"),
        ("response_format", schema_format(name="a b"), "response_format.json_schema.name"),
        ("response_format", schema_format(schema=None), "response_format.json_schema.schema"),
        ("response_format", schema_format(schema=True), "response_format.json_schema.schema"),
        ("response_format", schema_format(strict="yes"), "response_format.json_schema.strict"),
        ("tools", [TOOL, "ls"], "tools[1]"),
        ("tools", [{"type": "custom", "custom": {"name": "x"}}], "tools[0].type"),
        ("tools", [{"function": {"name": "ls"}}], "tools[0].type"),
        ("tools", [{"type": "function"}], "tools[0].function"),
        ("tools", [{"type": "function", "function": {}}], "tools[0].function.name"),
        ("tools", [{"type": "function", "function": {"name": "a.b"}}], "tools[0].function.name"),
        ("tools", [{"type": "function", "function": {"name": "a" * 65}}], "tools[0].function.name"),
        ("tools", [{"type": "function", "function": {"name": "a\n"}}], "tools[0].function.name"),
        ("tools", [{"type": "function", "function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"),
        ("tools", [{"type": "function", "function": {"name": "a", "strict": 1}}], "tools[0].function.strict"),
        ("tool_choice", {}, "tool_choice.type"),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}}, "tool_choice.type"),
        ("tool_choice", {"type": "function"}, "tool_choice.function"),
        ("tool_choice", {"type": "function", "function": {}}, "tool_choice.function.name"),
        ("stream_options", {"usage": True}, "stream_options.usage"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
    ],
)
def test_a_fault_inside_a_field_is_named_by_its_place(name: str, value: Any, param: str) -> None:
    assert faulty(**{name: value}) == ("bad_request", param)


def test_a_named_tool_must_be_there() -> None:
    assert chat(tools=[TOOL], tool_choice=NAMED).body == {"tools": [TOOL], "tool_choice": NAMED}
    other = {"type": "function", "function": {"name": "cat"}}
    assert faulty(tools=[TOOL], tool_choice=other) == ("bad_request", "tool_choice.function.name")


def test_logprobs_is_a_switch_for_chat_and_a_number_for_completions() -> None:
    assert chat(logprobs=True, top_logprobs=20).body == {"logprobs": True, "top_logprobs": 20}
    assert parse_request("completion", b'{"prompt":"x","logprobs":5}', {}).body == {"prompt": "x", "logprobs": 5}
    assert refusal(b'{"prompt":"x","logprobs":true}', "completion").param == "logprobs"


def test_min_tokens_is_at_most_the_cap() -> None:
    assert chat(min_tokens=5, max_tokens=5).max_tokens == 5
    assert faulty(min_tokens=6, max_tokens=5) == ("bad_request", "min_tokens")
    assert faulty(min_tokens=6, max_tokens=9, max_completion_tokens=5) == ("bad_request", "min_tokens")


def test_obfuscation_of_a_stream_stays_here() -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    assert chat(stream=True, stream_options=options).body == {"stream_options": {"include_usage": True}}


def test_arguments_a_model_cut_short_travel_as_they_are() -> None:
    call = called(function=ls('{"path": "/ho'))
    assert chat(messages=[*HI, call]).messages[1]["tool_calls"] == call["tool_calls"]


def test_req_21_the_limit_of_logit_bias_is_told() -> None:
    error = refusal(json.dumps({"messages": HI, "logit_bias": {str(i): 1 for i in range(2000)}}).encode())
    assert error.message == "logit_bias: has 2000 entries; at most 300 are allowed."


def test_max_completion_tokens_wins_over_the_older_name() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=5, max_completion_tokens=None).max_tokens == 5
    assert chat(modalities=["text"]).body == {}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[1]"),
        (None, "messages[1]"),
        ({}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "system"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
        ({"role": "user", "content": [None]}, "messages[1].content[0].type"),
        ({"role": "user", "content": ["a", {"type": "image_url"}]}, "messages[1].content[1].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0].text"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": ["c1"]}, "messages[1].tool_calls[0]"),
        (called(id=None), "messages[1].tool_calls[0].id"),
        (called(id=5), "messages[1].tool_calls[0].id"),
        (called(type=None), "messages[1].tool_calls[0].type"),
        (called(type="custom"), "messages[1].tool_calls[0].type"),
        (called(function="ls"), "messages[1].tool_calls[0].function"),
        (called(function={"arguments": "{}"}), "messages[1].tool_calls[0].function.name"),
        (called(function={"name": "ls"}), "messages[1].tool_calls[0].function.arguments"),
        (called(function=ls({})), "messages[1].tool_calls[0].function.arguments"),
        (called(function=ls("[" * 65 + "]" * 65)), "messages[1].tool_calls[0].function.arguments"),
        (called(function=ls("[" * 99999)), "messages[1].tool_calls[0].function.arguments"),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[1].tool_call_id"),
        ({"role": "user", "content": "x", "name": {}}, "messages[1].name"),
    ],
)
def test_a_bad_message_is_named_by_its_place(message: Any, param: str) -> None:
    assert faulty(messages=[*HI, message]) == ("bad_request", param)


@pytest.mark.parametrize("messages", [[], {}, {"role": "user", "content": "hi"}, "hi", 5, None])
def test_req_01_and_26_messages_must_be_a_list_that_holds_one(messages: Any) -> None:
    assert faulty(messages=messages) == ("bad_request", "messages")
    assert refusal(b"{}").param == "messages"


def test_req_03_and_08_parts_become_text() -> None:
    parts: list[Any] = ["a", {"type": "text", "text": "b"}, {"type": "input_text", "text": "c"}]
    refusal_part = {"type": "refusal", "refusal": "no"}
    parsed = chat(messages=[{"role": "user", "content": parts}, {"role": "assistant", "content": [refusal_part]}])
    assert [m["content"] for m in parsed.messages] == ["a\nb\nc", "no"]
    assert chat(messages=[{"role": "user", "content": []}]).messages == [{"role": "user", "content": ""}]


def test_unknown_keys_of_a_message_do_not_travel() -> None:
    message = {"role": "user", "content": "x", "name": "ann", "tool_call_id": None, "weight": 1, "audio": {}}
    assert chat(messages=[message]).messages == [{"role": "user", "content": "x", "name": "ann"}]


def test_own_inputs_come_from_metadata_and_headers_win() -> None:
    metadata = {"session_id": "m", "user_id": "u", "route_hint": "qwen-doc", "task_type": "coding", "data_class": "eu"}
    parsed = chat(metadata=metadata, user="other")
    assert (parsed.session_id, parsed.user_id, parsed.route_hint) == ("m", "u", "qwen-doc")
    assert (parsed.intent, parsed.data_class, parsed.body) == ("coding", "eu", {})
    headers = {"x-session-id": "h", "x-task-type": "document", "x-language": "ja"}
    parsed = chat(headers, metadata=metadata)
    assert (parsed.session_id, parsed.intent, parsed.user_id, parsed.language) == ("h", "document", "u", "ja")
    assert chat(user="x" * 300).user_id == "x" * 256


@pytest.mark.parametrize("value", [7, ["s"], "x" * 257])
def test_own_inputs_are_bounded_and_named(value: Any) -> None:
    assert faulty(metadata={"session_id": value}) == ("bad_request", "metadata.session_id")


def test_a_header_that_is_too_long_is_named_as_it_was_sent() -> None:
    with pytest.raises(GrixError) as refused:
        parse_request("chat", b'{"messages":[{"role":"user","content":"hi"}]}', {"x-session-id": "s" * 257})
    assert refused.value.param == "x-session-id"


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_one_prompt_is_a_string_or_a_list_of_one(prompt: Any) -> None:
    assert parse_request("completion", json.dumps({"prompt": prompt}).encode(), {}).body == {"prompt": "Once"}


@pytest.mark.parametrize("prompt", [None, "", [], [""], ["a", "b"], [1, "a"], [-1], [True], [1.5], [[1]], {"a": 1}, 5])
def test_any_other_prompt_is_refused(prompt: Any) -> None:
    assert refusal(json.dumps({"prompt": prompt}).encode(), "completion").param == "prompt"


def test_token_ids_are_kept_and_chat_fields_are_foreign_to_completions() -> None:
    assert parse_request("completion", b'{"prompt":[0,5]}', {}).body == {"prompt": [0, 5]}
    error = refusal(b'{"prompt":"x","messages":[]}', "completion")
    assert (error.reason, error.param) == ("unknown_parameter", "messages")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "body: is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (b"[]", "body: must be a JSON object, is a list."),
        (b"null", "body: must be a JSON object, is null."),
        (b'{"a":\xff}', "body: is not UTF-8: byte 5."),
        (b'{"a":NaN}', "body: NaN is not JSON; allowed are finite numbers."),
        (b'{"a":-Infinity}', "body: -Infinity is not JSON; allowed are finite numbers."),
        (b'{"a":' * 100_000, "body: is nested deeper than 64."),
    ],
)
def test_a_body_that_is_no_json_object_says_so(raw: bytes, message: str) -> None:
    error = refusal(raw)
    assert (error.reason, error.param, error.message) == ("bad_request", "body", message)


def test_a_number_of_thousands_of_digits_is_a_400() -> None:
    assert refusal(b'{"max_tokens":' + b"9" * 5000 + b"}").status.http == 400


def test_nesting_is_allowed_to_the_limit_and_not_beyond() -> None:
    def nested(depth: int) -> bytes:
        return b'{"tools":' + b"[" * depth + b"]" * depth + b"}"

    assert list(parse_body(nested(MAX_NESTING))) == ["tools"]
    assert refusal(nested(MAX_NESTING + 1)).param == "tools"


def test_the_largest_body_passes_and_one_byte_more_does_not() -> None:
    raw = b'{"a":1}'
    assert parse_body(raw + b" " * (MAX_BODY_BYTES - len(raw))) == {"a": 1}
    assert refusal(b" " * (MAX_BODY_BYTES + 1)).reason == "body_too_large"


def test_req_09_lone_surrogates_are_replaced_everywhere_and_pairs_are_kept() -> None:
    raw = b'{"a":"x\\ud83e","b":["\\udd14"],"c":{"\\ud83e":"\\ud83e\\udd14"},"\\udd14":1}'
    assert parse_body(raw) == {"a": "x\ufffd", "b": ["\ufffd"], "c": {"\ufffd": "🤔"}, "\ufffd": 1}


def test_a_byte_order_mark_is_no_fault() -> None:
    assert parse_body(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_a_callers_value_is_told_short_and_never_in_param() -> None:
    error = refusal(json.dumps({"messages": HI, "temperature": "s" * 5000}).encode())
    assert error.param == "temperature"
    assert len(error.message) < 140


def test_more_messages_than_any_context_holds_are_refused() -> None:
    turns = [{"role": "user", "content": "x"}] * 10_001
    error = refusal(json.dumps({"messages": turns}).encode())
    assert (error.param, error.message) == (
        "messages",
        "messages: holds 10001 messages; at most 10000 are allowed.",
    )


async def test_a_large_body_is_parsed_beside_the_loop() -> None:
    threads = []

    def seen(kind: Any, raw: bytes, headers: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return len(raw)

    with mock.patch.object(openai_request, "parse_request", seen):
        for size in (openai_request.LARGE_BODY_BYTES, openai_request.LARGE_BODY_BYTES + 1):
            assert await openai_request.parse_apart("chat", b"x" * size, {}) == size
    assert threads == [True, False]


SESSION = {"session_id": "s1", "history": "server"}
NEW_TURN = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "and now?"}]


@pytest.mark.parametrize(
    ("metadata", "headers", "history"),
    [
        (SESSION, {}, True),
        ({"session_id": "s1"}, {"x-grix-history": "server"}, True),
        ({}, {"x-grix-history": "server", "x-session-id": "s1"}, True),
        (SESSION, {"x-grix-history": ""}, False),
        ({"session_id": "s1", "history": None}, {}, False),
        ({"session_id": "s1", "history": ""}, {}, False),
        ({"session_id": "s1"}, {}, False),
    ],
)
def test_history_is_the_servers_only_when_it_is_asked_for(
    metadata: dict[str, Any], headers: dict[str, str], history: bool
) -> None:
    raw = json.dumps({"messages": NEW_TURN, "metadata": metadata}).encode()
    assert parse_request("chat", raw, headers).history is history


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"metadata": {"history": "server"}}, {}, "metadata.session_id"),
        ({}, {"x-grix-history": "server"}, "metadata.session_id"),
        ({"metadata": {"session_id": "", "history": "server"}}, {}, "metadata.session_id"),
        ({"metadata": {**SESSION, "history": "client"}}, {}, "metadata.history"),
        ({"metadata": {**SESSION, "history": True}}, {}, "metadata.history"),
        ({"metadata": {**SESSION, "history": ["server"]}}, {}, "metadata.history"),
        ({"metadata": SESSION}, {"x-grix-history": "SERVER"}, "x-grix-history"),
        ({"metadata": SESSION, "messages": [*NEW_TURN, {"role": "assistant", "content": "a"}]}, {}, "messages"),
        ({"metadata": SESSION, "messages": [*NEW_TURN, *NEW_TURN]}, {}, "messages"),
        ({"metadata": SESSION, "messages": NEW_TURN[:1]}, {}, "messages"),
        ({"metadata": SESSION, "tools": [{"type": "function", "function": {"name": "f"}}]}, {}, "tools"),
    ],
)
def test_what_server_side_history_needs_is_named(body: dict[str, Any], headers: dict[str, str], param: str) -> None:
    with pytest.raises(GrixError) as error:
        parse_request("chat", json.dumps({"messages": NEW_TURN, **body}).encode(), headers)
    assert (error.value.reason, error.value.param) == ("bad_request", param)


def test_a_completion_has_no_history() -> None:
    with pytest.raises(GrixError) as error:
        parse_request("completion", json.dumps({"prompt": "x", "metadata": SESSION}).encode(), {})
    assert error.value.param == "metadata.history"
