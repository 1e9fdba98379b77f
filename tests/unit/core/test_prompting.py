"""Prompts: system texts joined without a loss, special tokens made text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.core.prompting import (
    LARGE_CHARS,
    LARGE_MEMBERS,
    MAX_NESTING,
    inert_chat,
    is_large,
    make_inert,
    merge_system,
)

USER = {"role": "user", "content": "hi"}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<tool_call>", "[INST]", "<", "  ")
END, BROKEN = "<|im_end|>", "<\u200b|im_end|>"


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ([], [{"role": "system", "content": "T"}]),
        ([USER], [{"role": "system", "content": "T"}, USER]),
        ([{"role": "system", "content": "A"}, USER], [{"role": "system", "content": "T\n\nA"}, USER]),
        ([{"role": "developer", "content": "A"}], [{"role": "system", "content": "T\n\nA"}]),
        ([{"role": "system", "content": ""}], [{"role": "system", "content": "T"}]),
        ([{"role": "system", "content": None}], [{"role": "system", "content": "T"}]),
        ([{"role": "system", "content": "A", "name": "n"}], [{"role": "system", "content": "T\n\nA", "name": "n"}]),
        (
            [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}],
            [{"role": "system", "content": "T\n\nA"}, {"role": "system", "content": "B"}],
        ),
        (
            [USER, {"role": "system", "content": "A"}],
            [{"role": "system", "content": "T"}, USER, {"role": "system", "content": "A"}],
        ),
    ],
)
def test_the_templates_text_comes_first_and_nothing_is_lost(own: list[dict], merged: list[dict]) -> None:
    assert merge_system(own, "T") == merged


@pytest.mark.parametrize("system", [None, ""])
def test_without_a_template_messages_stay(system: str | None) -> None:
    assert merge_system([{"role": "developer", "content": "A"}, USER], system) == [
        {"role": "developer", "content": "A"},
        USER,
    ]


def test_the_callers_messages_are_not_changed_in_place() -> None:
    own = [{"role": "system", "content": "A"}]
    merge_system(own, "T")[0]["content"] = "changed"
    assert own == [{"role": "system", "content": "A"}]


@pytest.mark.parametrize(
    ("text", "inert"),
    [
        ("plain", "plain"),
        ("a < b", "a < b"),
        ("  two spaces are a token of some tokenizers", "  two spaces are a token of some tokenizers"),
        ("<|im_end|>", "<\u200b|im_end|>"),
        ("x<|im_end|><|im_end|>", "x<\u200b|im_end|><\u200b|im_end|>"),
        ("<|im_<|im_end|>end|>", "<|im_<\u200b|im_end|>end|>"),
        ("<<|im_end|>", "<<\u200b|im_end|>"),
        ("[INST]", "[\u200bINST]"),
        ("<|im_end|", "<|im_end|"),
        ("<|IM_END|> < |im_end|> <|im_\u200bend|>", "<|IM_END|> < |im_end|> <|im_\u200bend|>"),
        ("", ""),
    ],
)
def test_special_tokens_stay_readable_and_lose_their_meaning(text: str, inert: str) -> None:
    assert make_inert(text, SPECIAL) == inert
    assert make_inert(inert, SPECIAL) == inert


@pytest.mark.parametrize(
    ("tokens", "text"), [(("aXa",), "aXaXaXa"), (("ab", "bc"), "abcabc"), (("<s>", "<<s>>"), "<<s>>")]
)
def test_tokens_that_overlap_are_all_broken(tokens: tuple[str, ...], text: str) -> None:
    inert = make_inert(text, tokens)
    assert not any(token in inert for token in tokens)
    assert inert.replace("\u200b", "") == text


def test_no_tokens_break_nothing() -> None:
    assert make_inert("<|im_end|>", ()) == "<|im_end|>"
    assert make_inert("<|im_end|>", ("<",)) == "<|im_end|>"


def a_call(arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": END, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"content": END}, {"content": BROKEN}),
        ({"content": [{"type": "text", "text": END}]}, {"content": [{"type": "text", "text": BROKEN}]}),
        ({"content": None, "name": END}, {"content": None, "name": BROKEN}),
        ({"content": "", "tool_call_id": END}, {"content": "", "tool_call_id": BROKEN}),
        ({"content": "", "tool_calls": None}, {"content": "", "tool_calls": None}),
    ],
)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_every_text_of_a_message_is_made_inert(role: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    body = {"messages": [{"role": role, **before}], "seed": 1}
    assert inert_chat(body, SPECIAL) == {"messages": [{"role": role, **after}], "seed": 1}
    assert body == {"messages": [{"role": role, **before}], "seed": 1}


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ('{"x": "<|im_end|>"}', {"x": BROKEN}),
        ('{"<|im_end|>": [["<|im_end|>"]]}', {BROKEN: [[BROKEN]]}),
        (r'{"x": "\u003c|im_end|\u003e"}', {"x": BROKEN}),
        (r'{"\u003c\u007cim_end\u007c\u003e": 1}', {BROKEN: 1}),
        (r'{"x": "<\u0074ool_call>"}', {"x": "<\u200btool_call>"}),
        (r'{"x": "\u65e5\u672c"}', {"x": "日本"}),
    ],
)
def test_arguments_are_inert_as_the_engine_reads_them(arguments: str, made: dict[str, Any]) -> None:
    body = {"messages": [{"role": "assistant", "tool_calls": [a_call(arguments)]}]}
    (call,) = inert_chat(body, SPECIAL)["messages"][0]["tool_calls"]
    assert call["id"] == BROKEN
    assert json.loads(call["function"]["arguments"]) == made


@pytest.mark.parametrize("arguments", ["", "{", "not json", "[1]", "7", None, {"x": 1}, '{"a":  1}', '{"a": "\\n"}'])
def test_arguments_without_a_token_stay_byte_for_byte(arguments: Any) -> None:
    made = inert_chat({"messages": [{"role": "assistant", "tool_calls": [a_call(arguments)]}]}, SPECIAL)
    assert made["messages"][0]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 100_000])
def test_arguments_nested_too_deeply_are_the_callers_fault(levels: int) -> None:
    deep = "[" * levels + "]" * levels
    with pytest.raises(ValueError, match="nested deeper than 64"):
        inert_chat({"messages": [{"role": "assistant", "tool_calls": [a_call(deep)]}]}, SPECIAL)


@pytest.mark.parametrize("call", [{}, {"function": None}, {"function": "f"}, {"function": {"name": "f"}}])
def test_odd_tool_calls_are_left_to_the_engine(call: dict[str, Any]) -> None:
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    assert inert_chat(body, SPECIAL) == body


def test_tools_are_inert_and_a_choice_still_finds_its_tool() -> None:
    parameters = {"type": "object", "properties": {END: {"enum": [END, 1], "description": END}}, "required": [END]}
    tool = {"type": "function", "function": {"name": END, "description": END, "parameters": parameters}}
    choice = {"type": "function", "function": {"name": END}}
    made = inert_chat({"messages": [], "tools": [tool], "tool_choice": choice}, SPECIAL)
    assert END not in json.dumps(made, ensure_ascii=False)
    assert made["tools"][0]["function"]["name"] == made["tool_choice"]["function"]["name"] == BROKEN
    assert list(made["tools"][0]["function"]["parameters"]["properties"]) == [BROKEN]
    assert END in json.dumps(tool)


@pytest.mark.parametrize("choice", ["auto", "none", "required", None])
def test_what_is_compared_with_the_answer_stays(choice: str | None) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": END}}}
    body = {"messages": [], "stop": [END], "response_format": shape, "tool_choice": choice}
    assert inert_chat(body, SPECIAL) == body


@pytest.mark.parametrize(
    ("body", "large"),
    [
        ({}, False),
        ({"messages": [USER] * 300}, False),
        ({"messages": [{"role": "user", "content": "x" * (LARGE_CHARS - 4)}]}, False),
        ({"messages": [{"role": "user", "content": "x" * LARGE_CHARS}]}, True),
        ({"messages": [USER] * LARGE_MEMBERS}, True),
        ({"tools": [{"function": {"parameters": {"enum": [1] * (LARGE_MEMBERS + 1)}}}]}, True),
        ({"prompt": list(range(LARGE_MEMBERS + 1))}, True),
    ],
)
def test_what_takes_long_to_touch_is_told(body: dict[str, Any], large: bool) -> None:
    assert is_large(body) is large
