"""An engine's life, judged by its tokens."""

from __future__ import annotations

import pytest

from serve_app.core.health import EngineView, judge


@pytest.mark.parametrize(
    ("silent_s", "unfinished", "prefill_s", "verdict"),
    [
        (0.0, 0, 0.0, "alive"),
        (2.0, 9, 0.0, "alive"),
        (2.001, 0, 0.0, "ask"),
        (2.001, 9, 0.0, "ask"),
        (3.0, 1, 0.0, "ask"),
        (3.001, 1, 0.0, "stalled"),
        (8.0, 1, 5.0, "ask"),
        (8.001, 1, 5.0, "stalled"),
        (1e9, 0, 0.0, "ask"),
        (-1.0, 1, 0.0, "alive"),
    ],
)
def test_the_verdict(silent_s: float, unfinished: int, prefill_s: float, verdict: str) -> None:
    assert judge(EngineView(0.0, -silent_s, unfinished, prefill_s, 3.0)) == verdict


def test_the_limit_is_the_floor_and_the_longest_prefill() -> None:
    assert EngineView(0.0, 0.0, 1, 4.5, 3.0).stall_limit_s == 7.5
