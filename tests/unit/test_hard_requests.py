"""Requests that broke other gateways, where no engine is needed to see that they do not break this one."""

from __future__ import annotations

import builtins
import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core import budget
from serve_app.core.prompting import merge_system
from serve_app.openai_request import parse_request
from serve_app.openai_rules import MAX_SCHEMA_SIZE
from serve_app.outcomes import GrixError
from tests.fakes import Stage, a_table, agent


async def test_req_29_a_long_prompt_touches_neither_network_nor_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty thousand tokens are estimated: no tokenizer, no hub, nothing that could block the loop."""
    large = agent("qwen-chat", max_model_len=40_000)
    stage = Stage(table=a_table(agents={"qwen-chat": large, "qwen-doc": agent("qwen-doc", max_model_len=40_000)}))
    raw = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hello " * 30_000}]}).encode()

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"the request path did input or output: {args[:2]}")

    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(builtins, "open", never)
    answer = await stage.run(raw)
    monkeypatch.undo()
    assert answer.status == 200


@given(st.lists(st.text(max_size=50), min_size=1, max_size=20))
def test_req_16_the_estimate_counts_the_templates_own_tokens(texts: list[str]) -> None:
    told = budget.estimate_prompt_tokens([{"role": "user", "content": t} for t in texts])
    overhead = budget.FIRST_TURN_TOKENS + budget.FURTHER_TURN_TOKENS * (len(texts) - 1)
    size = sum(len(t.encode("utf-8", "replace")) for t in texts)
    assert told - overhead >= size / budget.BYTES_PER_TOKEN
    assert (budget.FIRST_TURN_TOKENS, budget.FURTHER_TURN_TOKENS) == (8, 5)


@given(st.none() | st.integers(1, 2**53), st.integers(1, 10_000), st.integers(-10_000, 10_000), st.booleans())
def test_req_15_no_budget_is_ever_below_one(requested: int | None, default: int, left: int, english: bool) -> None:
    found = budget.decide(requested, default, "th", "Thai", {"en": 1.0, "th": 2.9}, english=english, context_left=left)
    assert 1 <= found.max_tokens <= max(1, left)


NOTHINGS: list[Any] = [None, "", [], [{"type": "text", "text": ""}]]


@pytest.mark.parametrize("nothing", NOTHINGS, ids=range(4))
def test_req_07_an_empty_turn_beside_a_tool_call_keeps_its_id(nothing: Any) -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "add 2 and 2"},
        {"role": "assistant", "content": nothing, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c9", "content": "4"},
    ]
    parsed = parse_request("chat", json.dumps({"messages": turns}).encode(), {})
    sent = merge_system(parsed.messages, "Be kind.")
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"] == "c9"
    assert "None" not in json.dumps(sent) and not sent[2]["content"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("messages", "model", "stop", "stream", "stream_options", "tools", "tool_choice", "response_format", "n")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=5), st.sampled_from(["chat", "completion"]))
def test_req_26_any_json_in_any_field_is_a_request_or_a_400_that_names_it(body: dict[str, Any], kind: Any) -> None:
    try:
        parse_request(kind, json.dumps(body).encode(), {})
    except GrixError as error:
        assert error.status.http in (400, 404, 413)
        assert error.param is not None and len(error.param) <= 100


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_more_request_any_bytes_are_a_request_or_a_400(raw: bytes) -> None:
    with pytest.raises(GrixError) as refused:
        parse_request("chat", raw, {})
    assert refused.value.status.http == 400


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":' + b"[" * 100_000,
        b'{"messages":' + b'{"a":' * 100_000,
        b'{"messages":[],"messages":null}',
        b'{"max_tokens":' + b"9" * 5000 + b"}",
        b'{"temperature":1e999}',
        b'{"temperature":-Infinity}',
        b'{"messages":"\\u0000"}',
        b"\xef\xbb\xbf{}",
        b'\xff\xfe{"a":1}',
        b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}',
        b"null",
        b'"text"',
        b"",
    ],
    ids=range(13),
)
def test_more_request_a_hostile_body_is_a_400(raw: bytes) -> None:
    with pytest.raises(GrixError) as refused:
        parse_request("chat", raw, {})
    assert refused.value.status.http == 400 and len(refused.value.message) < 500


TWICE = [
    b'{"model":"a","model":"b","messages":[{"role":"user","content":"hi"}]}',
    b'{"messages":[{"role":"user","content":"hi","content":"ho"}]}',
    b'{"messages":[{"role":"user","content":"hi"}],"metadata":{"session_id":"a","session\\u005fid":"b"}}',
]


@pytest.mark.parametrize("raw", TWICE, ids=range(3))
def test_more_request_a_name_that_is_there_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(GrixError, match=r'body: has "(model|content|session_id)" more than once in one object'):
        parse_request("chat", raw, {})


HI = {"messages": [{"role": "user", "content": "hi"}]}


def schema_of(schema: Any) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return json.dumps({**HI, "response_format": form}).encode()


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**100])
def test_more_request_a_number_that_no_message_carries_is_the_callers_fault(value: int) -> None:
    """The engine's client could not send it, which would look like a fault of the engine."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": value}}}
    for raw in (schema_of({"maximum": value}), json.dumps({**HI, "tools": [tool]}).encode()):
        with pytest.raises(GrixError, match="is too large for a whole number") as refused:
            parse_request("chat", raw, {})
        assert refused.value.param in ("response_format", "tools")
    # A model wrote these digits, and may write more.
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": value})}}
    turns = [*HI["messages"], {"role": "assistant", "tool_calls": [call]}]
    assert parse_request("chat", json.dumps({"messages": turns}).encode(), {}).messages[1]["tool_calls"] == [call]


LARGE: list[Any] = [
    {"enum": list(range(MAX_SCHEMA_SIZE))},
    {"properties": {f"p{i}": {"type": "integer"} for i in range(1000)}},
    {"anyOf": [{"required": ["a"]}] * 1000},
    {"pattern": "a|" * 50_001},
    {"properties": {"a" * 100_001: {}}},
]


@pytest.mark.parametrize("schema", LARGE, ids=range(len(LARGE)))
def test_more_request_a_schema_that_keeps_an_engine_busy_for_a_minute_is_refused(schema: Any) -> None:
    with pytest.raises(GrixError, match=r"is too large: .* come to \d+; allowed is 2000") as refused:
        parse_request("chat", schema_of(schema), {})
    assert refused.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "minItems": 10**9, "items": {"type": "string"}}, "asks for too many items"),
        ({"type": "string", "pattern": "^[a-z]{200}$"}, "repeats a part 200 times"),
        ({"type": "string", "minLength": 10**12}, "has a minLength of 1000000000000"),
    ],
)
def test_more_request_what_a_schema_repeats_is_bounded(schema: dict[str, Any], said: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    whole, part = json.dumps({**HI, "tools": [tool]}).encode(), "response_format.json_schema.schema"
    for raw, param in ((schema_of(schema), part), (whole, "tools[0].function.parameters")):
        with pytest.raises(GrixError, match=said) as refused:
            parse_request("chat", raw, {})
        assert (refused.value.reason, refused.value.param) == ("bad_request", param)


def test_more_request_tools_are_bounded_one_by_one_and_together() -> None:
    def tools(properties: int, count: int) -> bytes:
        schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(properties)}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        return json.dumps({**HI, "tools": [tool] * count}).encode()

    assert len(parse_request("chat", tools(900, 5), {}).body["tools"]) == 5
    for raw, param in ((tools(1000, 1), "tools[0].function.parameters"), (tools(900, 6), "tools")):
        with pytest.raises(GrixError, match="is too large") as refused:
            parse_request("chat", raw, {})
        assert refused.value.param == param


ODD_NAMES = ["auto ", "AUTO", "", "../qwen-chat", "qwen-chat@", "@", "qwen-chat\n", "\x00", "a/b:c"]


@pytest.mark.parametrize("model", ODD_NAMES)
async def test_more_request_an_odd_model_name_is_auto_or_a_404(model: str) -> None:
    stage = Stage()
    raw = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
    answer = await stage.run(raw)
    assert answer.status in (200, 400, 403, 404)
    if answer.status != 200:
        assert isinstance(answer.body, bytes)
        assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
        assert stage.agents.calls == []
