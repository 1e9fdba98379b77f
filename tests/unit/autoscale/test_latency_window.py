"""The sliding window of waits: percentiles, no data, a queue that stands still, and clocks that step."""

from __future__ import annotations

import math

import pytest

from autoscale.latency_window import MOST_SAMPLES, LatencyWindow, Reading, percentile

EMPTY = Reading(None, None, 0.0, None, None, None)


def test_nothing_yet_is_no_data_and_not_zero() -> None:
    assert LatencyWindow().read(100.0) == EMPTY


def test_percentiles_of_what_was_waited_lately() -> None:
    window = LatencyWindow()
    for ms in range(1, 101):
        window.waited(float(ms), 100.0)
    reading = window.read(104.0)
    assert (reading.queue_wait_p50_ms, reading.queue_wait_p95_ms, reading.newest_s) == (50.0, 95.0, 4.0)


def test_samples_leave_after_ten_seconds() -> None:
    window = LatencyWindow()
    window.waited(900.0, 100.0)
    window.waited(10.0, 105.0)
    assert [window.read(t).queue_wait_p95_ms for t in (110.0, 110.1, 115.0, 115.1)] == [900.0, 10.0, 10.0, None]


def test_a_queue_that_stands_still_is_seen_without_any_sample() -> None:
    reading = LatencyWindow().read(107.5, [103.0, 100.0, 107.0])
    assert (reading.queue_wait_p95_ms, reading.oldest_wait_ms) == (None, 7500.0)


def test_first_tokens_and_failures() -> None:
    window = LatencyWindow()
    window.first_token(80.0, 100.0)
    for failed in (True, False, False, False):
        window.ended(100.0, failed=failed)
    reading = window.read(100.0)
    assert (reading.first_token_p95_ms, reading.error_ratio, reading.queue_wait_p95_ms) == (80.0, 0.25, None)
    assert window.read(110.1) == EMPTY


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_no_sample(value: float) -> None:
    window = LatencyWindow()
    window.waited(value, 100.0)
    assert window.read(100.0) == EMPTY


def test_a_negative_wait_between_two_clocks_is_none() -> None:
    window = LatencyWindow()
    window.waited(-3.0, 100.0)
    assert window.read(100.0, [101.0]) == Reading(0.0, 0.0, 0.0, None, None, 0.0, 0.1)


def test_how_many_were_scheduled_lately() -> None:
    window = LatencyWindow()
    for at_s in (100.0, 101.0, 106.0):
        window.waited(5.0, at_s)
    assert [window.read(t).started_rps for t in (106.0, 110.5, 120.0)] == [0.3, 0.2, 0.0]


def test_the_rate_of_a_flood_is_that_of_the_samples_that_are_kept() -> None:
    window = LatencyWindow()
    for n in range(2 * MOST_SAMPLES):
        window.waited(1.0, 100.0 + n / 2048)
    assert window.read(104.0).started_rps == pytest.approx(2048, rel=0.01)


def test_a_clock_set_back_leaves_no_sample_for_ever() -> None:
    window = LatencyWindow()
    window.waited(500.0, 5000.0)
    assert window.read(100.0) == EMPTY


def test_a_flood_is_bounded() -> None:
    window = LatencyWindow()
    for ms in range(MOST_SAMPLES + 100):
        window.waited(float(ms), 100.0)
    assert window.read(100.0).queue_wait_p50_ms == 99 + MOST_SAMPLES / 2


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.95, None), ([3.0], 0.5, 3.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0], 0.95, 2.0)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected
