"""Tables align whatever the script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.cli.table import cut, pad, render, width


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        *(("", 0), ("abc", 3), ("退货", 4), ("パス", 4), ("ｱ", 1), ("비번", 4), ("ط", 1)),
        *(("e\u0301", 1), ("👍", 2), ("\u200b", 0)),
    ],
)
def test_width(text: str, cells: int) -> None:
    assert width(text) == cells


@pytest.mark.parametrize(
    ("text", "cells", "kept"),
    [
        *(("abc", 3, "abc"), ("abcd", 3, "ab…"), ("退货流程", 5, "退货…"), ("退货流程", 4, "退…")),
        ("a\n b\t c", 9, "a b c"),
    ],
)
def test_cut(text: str, cells: int, kept: str) -> None:
    assert cut(text, cells) == kept


@given(st.text(), st.integers(1, 40))
def test_cut_never_exceeds(text: str, cells: int) -> None:
    assert width(cut(text, cells)) <= cells
    assert "\n" not in cut(text, cells)


@given(st.text(max_size=10))
def test_pad_fills(text: str) -> None:
    assert width(pad(text, 40)) == 40


def test_render_aligns_by_cells() -> None:
    got = render(["name", "n"], [["退货", 7], ["a", None]], frozenset({"n"}))
    assert got.splitlines() == ["name  n", "----  -", "退货  7", "a     –"]
