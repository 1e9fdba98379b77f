"""Token budgets: whose number it is, how it grows, where it ends, and the reason that is told."""

from __future__ import annotations

import pytest

from serve_app.core.budget import (
    TokenBudget,
    decide,
    estimate_prompt_tokens,
    least_prompt_tokens,
    messages_bytes,
    text_bytes,
    token_ratio,
)

RATIOS = {"en": 1.0, "zh": 1.15, "zh-Hant": 1.25, "ja": 1.6, "ar": 1.8, "id": 1.7, "vi": 1.6, "th": 2.9}


@pytest.mark.parametrize(
    ("language", "script", "ratio"),
    [
        ("en", "Latn", 1.0),
        ("ja", "Jpan", 1.6),
        ("fr", "Latn", 1.7),
        ("fa", "Arab", 1.8),
        ("yue", "Hans", 1.25),
        ("yue", "Zyyy", 1.25),
        ("und", "Hani", 1.25),
        ("und", "Latn", 1.7),
        ("und", "Zyyy", 2.9),
        ("ru", "Cyrl", 2.9),
        ("xx", "Thai", 2.9),
    ],
)
def test_a_language_without_a_ratio_takes_the_largest_of_its_script_or_of_all(
    language: str, script: str, ratio: float
) -> None:
    assert token_ratio(language, script, RATIOS) == ratio


def test_a_ratio_is_never_under_one() -> None:
    assert token_ratio("en", "Latn", {"en": 0.4}) == 1.0
    assert token_ratio("fr", "Latn", {"en": 0.4}) == 1.0
    assert token_ratio("fr", "Latn", {}) == 1.0


@pytest.mark.parametrize(
    ("requested", "english", "left", "wanted"),
    [
        (None, False, 4000, TokenBudget(160, None, 1.6, "the agent's default 100 x 1.6 for ja")),
        (50, False, 4000, TokenBudget(50, 50, 1.6, "the caller's cap")),
        (50, True, 4000, TokenBudget(80, 50, 1.6, "the caller's English budget 50 x 1.6 for ja")),
        (1, True, 4000, TokenBudget(2, 1, 1.6, "the caller's English budget 1 x 1.6 for ja")),
        (50, False, 50, TokenBudget(50, 50, 1.6, "the caller's cap")),
        (50, False, 49, TokenBudget(49, 50, 1.6, "the caller's cap, cut to what the context leaves")),
        (50, False, 0, TokenBudget(1, 50, 1.6, "the caller's cap, cut to what the context leaves")),
        (50, False, -9, TokenBudget(1, 50, 1.6, "the caller's cap, cut to what the context leaves")),
    ],
)
def test_budgets_say_why(requested: int | None, english: bool, left: int, wanted: TokenBudget) -> None:
    assert decide(requested, 100, "ja", "Jpan", RATIOS, english=english, context_left=left) == wanted


def test_a_product_that_is_whole_is_not_rounded_up_by_its_last_bit() -> None:
    assert 100 * 1.1 > 110
    assert decide(None, 100, "x", "Latn", {"x": 1.1}, english=False, context_left=999).max_tokens == 110


@pytest.mark.parametrize(
    ("content", "size"),
    [("abc", 3), ("あ", 3), ("🙂", 4), ("\ud83e", 1), (None, 0), (5, 0), ([], 0), ([{"text": "ab"}, {}, "x", 3], 2)],
)
def test_bytes_of_a_content(content: object, size: int) -> None:
    assert text_bytes(content) == size


def test_estimates_hold_eight_tokens_for_the_first_turn_and_five_for_each_further() -> None:
    assert [estimate_prompt_tokens([{"content": ""}] * n) for n in range(4)] == [0, 8, 13, 18]
    assert estimate_prompt_tokens([{"content": "a" * 300}, {"content": "b"}]) == 101 + 13


def test_a_prompt_has_a_token_of_eight_bytes_at_least() -> None:
    assert [least_prompt_tokens(size) for size in (0, 7, 8, 800)] == [0, 0, 1, 100]


def test_bytes_are_those_of_all_messages() -> None:
    assert messages_bytes([{"content": "a" * 8}, {"content": None}, {"content": [{"text": "あ" * 8}]}, {}]) == 32
    assert messages_bytes([]) == 0
