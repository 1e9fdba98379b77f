"""What holds of every warm-up, whatever an engine and its machine do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.warm_up import IN_A_ROW, PATIENCE_ROUNDS, PATIENCE_S, Norm, judge

TIMES_MS = st.one_of(st.floats(0.1, 60_000.0), st.just(math.inf))
ROUNDS = st.lists(TIMES_MS, min_size=1, max_size=40)
NORMS = st.builds(Norm, st.floats(100.0, 60_000.0), st.none() | st.floats(0.1, 30_000.0))
SPENT_S = st.floats(0.0, 3_600.0)


@given(ROUNDS, NORMS, SPENT_S)
def test_what_is_let_in_has_not_been_slow_for_some_rounds(rounds_ms: list[float], norm: Norm, spent_s: float) -> None:
    if judge(rounds_ms, norm, spent_s).verdict == "warm":
        assert len(rounds_ms) >= IN_A_ROW
        assert max(rounds_ms[-IN_A_ROW:]) <= norm.slow_ms <= norm.limit_ms


@given(ROUNDS, NORMS, SPENT_S)
def test_every_warm_up_ends_with_patience_and_none_is_given_up_before(
    rounds_ms: list[float], norm: Norm, spent_s: float
) -> None:
    verdict = judge(rounds_ms, norm, spent_s).verdict
    impatient = len(rounds_ms) >= PATIENCE_ROUNDS and spent_s >= PATIENCE_S
    assert verdict in (("warm", "never") if impatient else ("warm", "go_on"))


@given(ROUNDS, NORMS, st.floats(0.1, 60_000.0))
def test_an_engine_that_comes_to_a_fit_time_and_stays_there_gets_warm(
    rounds_ms: list[float], norm: Norm, end_ms: float
) -> None:
    end_ms = min(end_ms, norm.slow_ms, *rounds_ms)
    assert judge([*rounds_ms, *[end_ms] * IN_A_ROW], norm, 0.0).verdict == "warm"


@given(ROUNDS, NORMS, SPENT_S, st.floats(0.1, 30_000.0))
def test_what_earlier_starts_came_to_makes_nobody_less_strict(
    rounds_ms: list[float], norm: Norm, spent_s: float, usual_ms: float
) -> None:
    unknown, known = Norm(norm.limit_ms), Norm(norm.limit_ms, usual_ms)
    assert known.slow_ms <= unknown.slow_ms
    if judge(rounds_ms, known, spent_s).verdict == "warm":
        assert judge(rounds_ms, unknown, spent_s).verdict == "warm"
