"""Deltas are merged only under load, and never for longer than a reader would notice."""

from __future__ import annotations

import pytest

from serve_app.core.merging import LONGEST_WINDOW_S, merge_wait_s, merge_window_s


@pytest.mark.parametrize(
    ("unfinished", "window_s"),
    [(0, 0.0), (1, 0.0), (4, 0.0), (5, 0.01), (16, 0.032), (40, LONGEST_WINDOW_S), (64, LONGEST_WINDOW_S)],
)
def test_the_window_grows_with_the_load(unfinished: int, window_s: float) -> None:
    assert merge_window_s(unfinished) == pytest.approx(window_s)


def test_streams_wait_for_the_same_edge() -> None:
    assert [merge_wait_s(50, now_s) for now_s in (8.02, 8.06, 8.07)] == pytest.approx([0.06, 0.02, 0.01])
    assert merge_wait_s(4, 8.06) == 0.0
