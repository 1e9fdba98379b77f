"""Fields that are honoured: each changes the answer in the way it says, on the real region."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import LiveRegion
from tests.e2e.test_openai_client import TOOL, answer_and_question
from tests.e2e.test_openai_fields import raw_stream

ORDER: dict[str, Any] = {"messages": [{"role": "user", "content": "Where is order A1024?"}], "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["answer", "days"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "delivery", "schema": SCHEMA, "strict": True}}


def choice_of(region: LiveRegion, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    status, _, told = region.ask("POST", path, body)
    assert status == 200, told
    choice: dict[str, Any] = told["choices"][0]
    return choice


def test_a_required_tool_is_called_with_arguments_of_its_schema(region: LiveRegion) -> None:
    choice = choice_of(region, {**ORDER, "tools": [TOOL], "tool_choice": "required", "max_tokens": 128})
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"]
    assert call["function"]["name"] == "order_status"
    assert list(json.loads(call["function"]["arguments"])) == ["order_id"]


def test_a_tool_that_may_not_be_called_is_not(region: LiveRegion) -> None:
    choice = choice_of(region, {**ORDER, "tools": [TOOL], "tool_choice": "none", "max_tokens": 64})
    assert not choice["message"].get("tool_calls")
    assert choice["message"]["content"] and choice["finish_reason"] in ("stop", "length")


def test_of_several_tools_the_named_one_is_called(region: LiveRegion) -> None:
    other = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    named = {"type": "function", "function": {"name": "order_status"}}
    choice = choice_of(region, {**ORDER, "tools": [other, TOOL], "tool_choice": named, "max_tokens": 128})
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["order_status"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_streamed_schema_is_followed(region: LiveRegion, path: str) -> None:
    asked = ORDER if "chat" in path else {"prompt": "Do you deliver?", "temperature": 0}
    body = {**asked, "response_format": FORMAT, "max_tokens": 128, "stream": True}
    choices = [c for e in raw_stream(region, body, path)[:-1] for c in json.loads(e)["choices"]]
    text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
    told = json.loads(text)
    assert told.keys() == {"answer", "days"} and told["answer"] in ("yes", "no") and 1 <= told["days"] <= 9


def test_a_schema_that_only_the_second_backend_knows_is_followed(region: LiveRegion) -> None:
    days = {"type": "integer", "minimum": 5, "maximum": 95, "multipleOf": 5}
    schema = {"type": "object", "properties": {"days": days}, "required": ["days"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "delivery", "schema": schema}}
    choice = choice_of(region, {**ORDER, "response_format": form, "max_tokens": 64})
    told = json.loads(choice["message"]["content"])
    assert told.keys() == {"days"} and told["days"] in range(5, 100, 5) and choice["finish_reason"] == "stop"


def test_streamed_logprobs_cover_each_token(region: LiveRegion) -> None:
    body = {**ORDER, "logprobs": True, "top_logprobs": 1, "max_tokens": 6, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = [json.loads(e) for e in raw_stream(region, body)[:-1]]
    told = [t for e in events for c in e["choices"] for t in (c.get("logprobs") or {}).get("content") or []]
    assert len(told) == events[-1]["usage"]["completion_tokens"]
    assert all(t["logprob"] <= 0 and t["top_logprobs"] for t in told)


def test_logprobs_of_a_completion_are_told_by_token(region: LiveRegion) -> None:
    body = {"prompt": "Hello", "logprobs": 2, "max_tokens": 4, "temperature": 0}
    told = choice_of(region, body, "/v1/completions")["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == 4
    assert all(len(top) >= 2 for top in told["top_logprobs"])


def test_echo_puts_the_prompt_first(region: LiveRegion) -> None:
    body = {"prompt": "Hello there", "echo": True, "max_tokens": 2, "temperature": 0}
    assert choice_of(region, body, "/v1/completions")["text"].startswith("Hello there")


def test_stop_of_a_stream_ends_before_the_word(region: LiveRegion) -> None:
    answer, question = answer_and_question("en")
    word = answer.split()[4]
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "stop": word, "stream": True}
    choices = [c for e in raw_stream(region, body)[:-1] for c in json.loads(e)["choices"]]
    assert "".join(c["delta"].get("content") or "" for c in choices) == answer[: answer.index(word)]
    assert choices[-1]["finish_reason"] == "stop"


def test_least_and_most_tokens(region: LiveRegion) -> None:
    answered = region.chat("Hello", max_tokens=64)[2]["usage"]["completion_tokens"]
    assert answered < 64
    longer = region.chat("Hello", max_tokens=64, min_tokens=answered + 8)[2]["usage"]["completion_tokens"]
    assert longer >= answered + 8
    assert region.chat("Hello", max_tokens=64, ignore_eos=True)[2]["usage"]["completion_tokens"] == 64


def test_a_bias_bends_the_answer(region: LiveRegion) -> None:
    told = region.chat("Hello", max_tokens=3, logit_bias={"330": 100}, logprobs=True, top_logprobs=1)[2]["choices"][0]
    assert len({t["token"] for t in told["logprobs"]["content"]}) == 1
    assert told["finish_reason"] == "length"


def test_an_id_that_the_model_has_not_is_a_bad_request_and_no_fault_of_the_engine(region: LiveRegion) -> None:
    for name, value in (("logit_bias", {str(2**31): 1}), ("stop_token_ids", [2**31 - 1])):
        status, _, told = region.chat("Hello", max_tokens=4, **{name: value})
        assert (status, told["error"]["type"]) == (400, "invalid_request_error"), told
    status, _, told = region.ask("POST", "/v1/completions", {"prompt": [2**31 - 1], "max_tokens": 4})
    assert (status, told["error"]["type"]) == (400, "invalid_request_error"), told
    assert region.chat("Hello", max_tokens=4)[0] == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"tools": []}, "tools", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "unsupported_parameter"),
    ],
)
def test_a_wrong_field_is_named(region: LiveRegion, fields: dict[str, Any], param: str, code: str) -> None:
    status, _, told = region.ask("POST", "/v1/chat/completions", {**ORDER, **fields})
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, param, code)


def test_suffix_is_refused_by_name(region: LiveRegion) -> None:
    status, _, told = region.ask("POST", "/v1/completions", {"prompt": "a", "suffix": "b"})
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, "suffix", "unsupported_parameter")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/chat/completions", {"POST"}), ("/v1/completions", {"POST"}), ("/v1/models", {"GET", "HEAD"})],
)
def test_a_method_that_is_not_allowed_is_told_which_are(region: LiveRegion, path: str, allowed: set[str]) -> None:
    for method in ("PUT", "OPTIONS"):
        status, headers, _ = region.ask(method, path)
        assert (status, set(headers["allow"].split(", "))) == (405, allowed)
