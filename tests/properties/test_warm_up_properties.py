"""What holds of every warm-up, whatever an engine and its machine do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.warm_up import IN_A_ROW, PATIENCE_ROUNDS, PATIENCE_S, Norm, Round, judge

TIMES_MS = st.one_of(st.floats(0.1, 60_000.0), st.just(math.inf))
SHARES_S = st.floats(0.0, 100.0)
ANY_ROUNDS = st.builds(Round, TIMES_MS, SHARES_S, SHARES_S, SHARES_S)
ROUNDS = st.lists(ANY_ROUNDS, min_size=1, max_size=40)
NORMS = st.builds(Norm, st.floats(100.0, 60_000.0), st.none() | st.floats(0.1, 30_000.0))
SPENT_S = st.floats(0.0, 3_600.0)


@given(ROUNDS, NORMS, SPENT_S)
def test_what_is_let_in_has_not_been_slow_for_some_rounds(rounds: list[Round], norm: Norm, spent_s: float) -> None:
    if judge(rounds, norm, spent_s).verdict == "warm":
        last = rounds[-IN_A_ROW:]
        assert len(last) == IN_A_ROW and norm.slow_ms <= norm.limit_ms
        assert all(one.slowest_ms <= (norm.limit_ms if one.starved else norm.slow_ms) for one in last)


@given(ROUNDS, NORMS, SPENT_S)
def test_every_warm_up_ends_with_patience_unless_the_machine_is_full_and_none_is_given_up_before(
    rounds: list[Round], norm: Norm, spent_s: float
) -> None:
    verdict = judge(rounds, norm, spent_s).verdict
    impatient = len(rounds) >= PATIENCE_ROUNDS and spent_s >= PATIENCE_S
    full = any(one.starved for one in rounds[-IN_A_ROW:])
    assert verdict in (("warm", "never") if impatient and not full else ("warm", "go_on", "never")[: 2 + impatient])


@given(ROUNDS, NORMS, SPENT_S)
def test_no_engine_is_given_up_for_what_its_machine_did(rounds: list[Round], norm: Norm, spent_s: float) -> None:
    # What it would be judged by if all that was slow had been so on a full machine.
    full = [Round(one.slowest_ms, 1.0, 0.0, 1.0) if one.slowest_ms > norm.slow_ms else one for one in rounds]
    assert judge(full, norm, spent_s).verdict != "never"
    if judge(rounds, norm, spent_s).verdict == "never":
        assert any(not one.starved and one.slowest_ms > norm.slow_ms for one in rounds[-IN_A_ROW:])


@given(ROUNDS, NORMS, SPENT_S)
def test_a_full_machine_makes_nobody_more_strict(rounds: list[Round], norm: Norm, spent_s: float) -> None:
    full = [Round(one.slowest_ms, 1.0, 0.0, 1.0) for one in rounds]
    rank = {"never": 0, "go_on": 1, "warm": 2}
    assert rank[judge(full, norm, spent_s).verdict] >= rank[judge(rounds, norm, spent_s).verdict]


@given(ROUNDS, NORMS, st.floats(0.1, 60_000.0))
def test_an_engine_that_comes_to_a_fit_time_and_stays_there_gets_warm(
    rounds: list[Round], norm: Norm, end_ms: float
) -> None:
    end_ms = min(end_ms, norm.slow_ms, *(one.slowest_ms for one in rounds))
    assert judge([*rounds, *[Round(end_ms)] * IN_A_ROW], norm, 0.0).verdict == "warm"


@given(ROUNDS, NORMS, SPENT_S, st.floats(0.1, 30_000.0))
def test_what_earlier_starts_came_to_makes_nobody_less_strict(
    rounds: list[Round], norm: Norm, spent_s: float, usual_ms: float
) -> None:
    unknown, known = Norm(norm.limit_ms), Norm(norm.limit_ms, usual_ms)
    assert known.slow_ms <= unknown.slow_ms
    if judge(rounds, known, spent_s).verdict == "warm":
        assert judge(rounds, unknown, spent_s).verdict == "warm"
