"""Deltas are merged only under load, and never for longer than a reader would notice."""

from __future__ import annotations

import pytest

from serve_app.core.merging import LONGEST_WINDOW_S, merge_window_s


@pytest.mark.parametrize(
    ("unfinished", "window_s"), [(0, 0.0), (1, 0.0), (4, 0.0), (5, 0.01), (16, 0.032), (64, LONGEST_WINDOW_S)]
)
def test_the_window_grows_with_the_load(unfinished: int, window_s: float) -> None:
    assert merge_window_s(unfinished) == pytest.approx(window_s)
