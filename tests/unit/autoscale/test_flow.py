"""What comes and what full replicas do, from the queue and from what is started."""

from __future__ import annotations

import pytest

from autoscale.flow import TREND_S, Flow


def seen(*looks: tuple[float, int, float | None, float | None], flow: Flow | None = None) -> Flow:
    """After these looks: (when, replicas, calls that wait, starts a second)."""
    flow = flow or Flow()
    for look in looks:
        flow = flow.seen(*look)
    return flow


FULL = seen(*((float(t), 2, 10.0 + t, 4.0) for t in range(11)))


def test_before_it_was_full_for_a_while_nothing_is_known() -> None:
    assert Flow().needed(5.0, 1.0) is None
    assert seen((0.0, 1, 3.0, 4.0), (4.0, 1, 4.0, 4.0)).needed(4.0, 4.0) is None
    # A queue that is empty now and then is no sign that all are full.
    assert seen(*((float(t), 1, float(t % 2), 4.0) for t in range(11))).replica_rps is None


def test_what_comes_is_what_starts_and_what_the_queue_grows_by() -> None:
    assert FULL.replica_rps == 2.0
    # Four start, one more waits each second, twenty wait, which shall be gone in a minute.
    assert FULL.needed(20.0, 4.0) == pytest.approx((4 + 1 + 20 / 60) / 2)


def test_a_queue_that_drains_fast_enough_needs_nobody() -> None:
    draining = seen(*((20.0 + t, 4, 60.0 - 3 * t, 8.0) for t in range(11)), flow=FULL)
    assert draining.needed(30.0, 8.0) == pytest.approx((8 - 3 + 30 / 60) / 2)


def test_a_queue_that_stands_still_needs_one_more() -> None:
    still = seen(*((20.0 + t, 2, 60.0, 4.0) for t in range(11)), flow=FULL)
    assert 2.0 < (still.needed(60.0, 4.0) or 0.0) <= 3.0


def test_what_a_replica_does_is_not_measured_while_their_number_changes() -> None:
    grown = seen(*((11.0 + t, 3, 20.0, 4.0) for t in range(9)), flow=FULL)
    assert (grown.replica_rps, grown.grown_lately(19.0)) == (2.0, True)
    later = seen(*((20.0 + t, 3, 20.0, 4.5) for t in range(9)), flow=grown)
    assert (later.replica_rps, later.grown_lately(28.0)) == (1.5, False)


def test_the_first_replica_is_no_growth() -> None:
    assert not seen((0.0, 0, 4.0, 0.0), (1.0, 1, 4.0, 0.0)).grown_lately(1.0)
    assert seen((0.0, 1, 4.0, 0.0), (1.0, 2, 4.0, 0.0)).grown_lately(1.0)
    assert seen((0.0, 2, 4.0, 0.0), (1.0, 1, 4.0, 0.0)).grown_lately(1.0)


def test_where_nothing_starts_the_past_says_nothing() -> None:
    stuck = seen(*((20.0 + t, 2, 60.0, 0.0) for t in range(11)), flow=FULL)
    assert stuck.needed(60.0, 0.0) is None and stuck.replica_rps == 2.0


@pytest.mark.parametrize("gap", [(11.0, 2, None, 4.0), (11.0, 2, 20.0, None)])
def test_what_nobody_knows_ends_the_trend(gap: tuple[float, int, float | None, float | None]) -> None:
    assert seen(gap, flow=FULL).needed(20.0, 4.0) is None


def test_a_clock_set_back_ends_the_trend_and_holds_nothing_for_ever() -> None:
    back = seen((2.0, 2, 20.0, 4.0), flow=seen((5000.0, 3, 20.0, 4.0), flow=FULL))
    assert [at_s for at_s, _ in back.samples] == [2.0]
    assert not back.grown_lately(2.0 + TREND_S)


def test_one_sample_a_second_however_often_it_is_looked_at() -> None:
    many = seen(*((t / 10, 1, 5.0, 4.0) for t in range(500)))
    assert len(many.samples) <= 11
