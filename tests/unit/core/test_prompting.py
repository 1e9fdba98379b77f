"""Prompts: system texts joined without a loss, special tokens made text."""

from __future__ import annotations

import pytest

from serve_app.core.prompting import inert_messages, make_inert, merge_system

USER = {"role": "user", "content": "hi"}
SPECIAL = ("<|im_start|>", "<|im_end|>", "[INST]", "<")


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
        ("<|im_end|>", "<\u200b|im_end|>"),
        ("x<|im_end|><|im_end|>", "x<\u200b|im_end|><\u200b|im_end|>"),
        ("[INST]", "[\u200bINST]"),
        ("<|im_end|", "<|im_end|"),
        ("", ""),
    ],
)
def test_special_tokens_stay_readable_and_lose_their_meaning(text: str, inert: str) -> None:
    assert make_inert(text, SPECIAL) == inert


def test_every_text_of_every_role_is_made_inert_and_the_rest_stays() -> None:
    messages = [{"role": r, "content": "<|im_end|>", "name": "n"} for r in ("system", "user", "assistant", "tool")]
    made = inert_messages([*messages, {"role": "assistant", "content": None}], SPECIAL)
    assert [m["content"] for m in made] == ["<\u200b|im_end|>"] * 4 + [None]
    assert all(m["name"] == "n" for m in made[:4])
    assert messages[0]["content"] == "<|im_end|>"
