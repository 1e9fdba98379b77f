"""Cutting text: bounded bytes, whole characters."""

from __future__ import annotations

import pytest

from serve_app.core.texts import clean_text, head, shorten


@pytest.mark.parametrize(
    ("text", "most_bytes", "left"),
    [
        ("hello", 5, "hello"),
        ("hello", 4, "hell"),
        ("日本語", 8, "日本"),
        ("日本語", 2, ""),
        ("é", 2, "é"),
        ("cafe\u0301s", 5, "caf"),
        ("cafe\u0301s", 6, "cafe\u0301"),
        ("กำ ที่", 12, "กำ "),
        ("👍🏽!", 7, ""),
        ("a👩\u200d👩\u200d👧b", 12, "a"),
        ("🇯🇵🇰🇷", 12, "🇯🇵"),
        ("🇯🇵🇰🇷", 16, "🇯🇵🇰🇷"),
        ("x\r\ny", 2, "x"),
        ("\u1112\u1161\u11ab!", 6, ""),
        ("abc", 0, ""),
        ("abc", -1, ""),
    ],
)
def test_a_text_ends_between_two_characters(text: str, most_bytes: int, left: str) -> None:
    assert head(text, most_bytes) == left


def test_marks_without_end_are_cut_all_the_same() -> None:
    assert head("a" + "\u0301" * 500, 101) == "a" + "\u0301" * 50


@pytest.mark.parametrize(
    ("text", "most_bytes", "short"),
    [
        ("hello", 5, "hello"),
        ("hello!", 5, "he…"),
        ("hi there", 6, "hi…"),
        ("日本語です", 9, "日本…"),
        ("long", 3, "…"),
        ("long", 2, ""),
    ],
)
def test_what_was_cut_says_so(text: str, most_bytes: int, short: str) -> None:
    assert shorten(text, most_bytes) == short


@pytest.mark.parametrize(
    ("text", "clean"), [("a\ud83d", "a\ufffd"), ("\udc00b", "\ufffdb"), ("\ud83d\ude00", "😀"), ("ok\0", "ok\0")]
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, clean: str) -> None:
    assert clean_text(text) == clean
