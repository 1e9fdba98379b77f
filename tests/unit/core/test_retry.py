"""Retries: which reasons, where, after how long, and the share of traffic that they may be."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.retry import (
    ELSEWHERE,
    GONE,
    MAX_ATTEMPTS,
    SAME_TARGET,
    Again,
    RetryBudget,
    next_attempt,
    start_left_s,
)
from serve_app.outcomes import STATUS, UNKNOWN_RETRY_S, Reason


def test_three_attempts_with_half_a_second_and_one_and_a_half_between() -> None:
    assert MAX_ATTEMPTS == 3
    found = [next_attempt("upstream_failed", n, 0, 1) for n in (1, 2, 3, 4)]
    assert found == [Again(0, 0.5), Again(0, 1.5), None, None]


@pytest.mark.parametrize("reason", get_args(Reason))
def test_where_each_reason_may_be_tried_again(reason: Reason) -> None:
    elsewhere = {
        "replica_lost",
        "peer_silent",
        "upstream_failed",
        "upstream_invalid",
        "no_target",
        "queue_timeout",
        "first_byte_timeout",
        "overloaded",
    }
    same = {"replica_lost", "peer_silent", "upstream_failed", "upstream_invalid", "no_target"}
    gone = {"replica_lost", "peer_silent", "no_target"}
    assert next_attempt(reason, 1, 0, 2) == (Again(1, 0.0, reason in gone) if reason in elsewhere else None)
    assert next_attempt(reason, 1, 1, 2) == (Again(1, 0.5) if reason in same else None)


def test_what_is_worth_the_same_target_is_worth_another_and_is_told_as_retryable() -> None:
    assert SAME_TARGET < ELSEWHERE
    assert {r for r, status in STATUS.items() if status.retry} == ELSEWHERE


def test_who_is_gone_is_left_without_a_price_and_asked_again_at_one() -> None:
    for reason in sorted(GONE):
        assert next_attempt(reason, 2, 0, 2) == Again(1, 0.0, is_free=True)
        assert next_attempt(reason, 3, 0, 2) is None
        again = next_attempt(reason, 1, 0, 1)
        assert again is not None and not again.is_free
    paid = next_attempt("first_byte_timeout", 1, 0, 2)
    assert paid is not None and not paid.is_free


@given(st.lists(st.sampled_from(sorted(GONE)), min_size=1, max_size=9), st.integers(1, 50))
def test_moves_that_cost_nothing_are_bounded_by_the_attempts_in_all(reasons: list[Reason], targets: int) -> None:
    attempts, index = 1, 0
    for reason in reasons:
        again = next_attempt(reason, attempts, index, targets)
        if again is None:
            break
        attempts, index = attempts + 1, again.index
    assert attempts == min(MAX_ATTEMPTS, len(reasons) + 1) and index <= MAX_ATTEMPTS - 1


def test_many_targets_are_still_three_attempts() -> None:
    assert next_attempt("overloaded", 2, 1, 9) == Again(2, 0.0)
    assert next_attempt("overloaded", 3, 2, 9) is None


def test_rte_21_a_target_is_asked_again_when_it_said_and_not_before() -> None:
    assert next_attempt("overloaded", 1, 0, 1, 2.0) == Again(0, 2.0)
    assert next_attempt("overloaded", 2, 0, 1, 2.0) == Again(0, 2.0)
    assert next_attempt("overloaded", 3, 0, 1, 2.0) is None
    assert next_attempt("upstream_failed", 1, 0, 1, 2.0) == Again(0, 2.0)
    assert next_attempt("upstream_failed", 2, 0, 1, 0.1) == Again(0, 1.5)
    # Another target never said so.
    assert next_attempt("overloaded", 1, 0, 2, 2.0) == Again(1, 0.0)
    # What is not there did not say anything either.
    assert next_attempt("no_target", 1, 0, 1, 5.0) == Again(0, 0.5)
    assert next_attempt("bad_request", 1, 0, 1, 2.0) is None


@given(st.lists(st.booleans(), max_size=400))
def test_rte_21_retries_are_a_fifth_of_traffic_and_what_a_router_begins_with(spends: list[bool]) -> None:
    budget, spent = RetryBudget(), 0
    for i, wants in enumerate(spends, 1):
        budget.earn()
        spent += wants and budget.spend()
        assert spent <= 0.2 * i + RetryBudget().saved + 1e-6


def test_a_budget_is_spent_whole_and_earned_in_fifths() -> None:
    budget = RetryBudget()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(4):
        budget.earn()
    assert budget.spend() is False
    budget.earn()
    assert budget.spend() is True
    assert budget.saved == pytest.approx(0.0)


def test_no_more_is_saved_than_the_burst() -> None:
    budget = RetryBudget(saved=9.9)
    budget.earn()
    assert budget.saved == 10.0


@pytest.mark.parametrize(
    ("usual_s", "passed_s", "left_s"),
    [
        (60.0, 0.0, 60.0),
        (60.0, 45.0, 15.0),
        (60.0, 59.5, 0.5),
        # It takes longer than last time, or nobody has seen one start.
        (60.0, 60.0, UNKNOWN_RETRY_S),
        (60.0, 900.0, UNKNOWN_RETRY_S),
        (None, 45.0, UNKNOWN_RETRY_S),
    ],
)
def test_an_engine_that_starts_takes_as_long_as_last_time(
    usual_s: float | None, passed_s: float, left_s: float
) -> None:
    assert start_left_s(usual_s, passed_s) == left_s
