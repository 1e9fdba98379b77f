"""What a Router knows of targets by itself: calls since the last report, and breakers that are told at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.reports import ProbeResult
from serve_app.core.snapshots import Load, Snapshot, Target

A = Target(
    "b", "b", "qwen-chat", "app", "abc" + "0" * 61, 1000, 4, frozenset(), 1.0, "healthy", Load(waiting=0, running=1)
)
B = replace(A, region="c")
PICTURE = Snapshot(1, 1, (A, B))


class Told:
    """Targets with a count of how often the region was to hear at once."""

    def __init__(self) -> None:
        self.hurried = 0
        self.breakers = RouterBreakers()
        self.targets = KnownTargets(self.breakers, self.hurry)

    def hurry(self) -> None:
        self.hurried += 1

    def in_flight(self, picture: Snapshot = PICTURE) -> dict[str, int]:
        return {i: n for i, n in self.targets.known(picture, 100.0).in_flight.items() if n}


def test_rte_10_calls_are_counted_from_the_targets_last_report() -> None:
    told = Told()
    assert told.in_flight() == {}
    for _ in range(3):
        assert told.targets.begin(A, 100.0) == "call"
    told.targets.begin(B, 100.0)
    told.targets.ended(B)
    assert told.in_flight() == {A.id: 3}
    # Another picture in which A says the same is no new report of A; one in which it says otherwise is.
    assert told.in_flight(replace(PICTURE, generation=2)) == {A.id: 3}
    reported = replace(PICTURE, generation=3, targets=(replace(A, load=Load(waiting=0, running=4)), B))
    assert told.in_flight(reported) == {}
    # They were in that report: when they end, it is too high.
    for _ in range(3):
        told.targets.ended(A)
    assert told.in_flight(reported) == {A.id: -3}


def test_a_target_that_left_is_forgotten() -> None:
    told = Told()
    told.in_flight()
    told.targets.begin(A, 100.0)
    assert told.in_flight(Snapshot(1, 2, (B,))) == {}
    assert told.in_flight(PICTURE) == {}


def test_a_trip_and_a_probe_are_told_at_once_and_only_until_they_are() -> None:
    told = Told()
    for _ in range(4):
        assert told.targets.failed(A, "call", "upstream_failed", 99.0, 100.0) is None
    assert told.hurried == 0
    assert told.targets.failed(A, "call", "upstream_failed", 99.0, 100.0) is not None
    assert told.hurried == 1
    assert told.targets.known(PICTURE, 100.0).blocked == {A.id}
    told.breakers.report("r", 101.0)
    told.targets.succeeded(B, "call", 101.0)
    assert told.hurried == 1
    assert told.targets.begin(replace(A, health="unknown"), 130.0) == "probe"
    told.targets.succeeded(A, "probe", 131.0)
    assert told.hurried == 2
    assert told.breakers.report("r", 131.0).probes == (ProbeResult(A.id, True),)


def test_a_target_whose_probe_is_lent_gets_one_call() -> None:
    told = Told()
    half = replace(A, breaker="probing")
    assert told.in_flight() == {}
    assert [told.targets.begin(half, 100.0) for _ in range(2)] == ["probe", None]
    told.targets.left(half, "probe")
    told.targets.ended(half)
    assert told.targets.begin(half, 100.0) == "probe"
    # What may not begin is not counted.
    assert told.in_flight() == {A.id: 1}


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({}, "call"),
        ({"health": "slow"}, "call"),
        # The region is silent, or there is nobody who shares breakers.
        ({"health": "unknown"}, "probe"),
        ({"health": "stale"}, "probe"),
        ({"breaker": "probing"}, "probe"),
    ],
)
def test_who_shares_breakers_knows_better_than_a_cool_down_of_ours_that_is_over(
    changes: dict[str, Any], entry: str
) -> None:
    told = Told()
    for _ in range(5):
        told.targets.failed(A, "call", "upstream_failed", 100.0, 100.0)
    assert told.targets.begin(replace(A, **changes), 130.0) == entry


def test_the_soonest_of_those_that_are_out() -> None:
    told = Told()
    assert told.targets.recover_s([A, B], 100.0) is None
    for at_s, target in ((100.0, A), (110.0, B)):
        for _ in range(10):
            told.targets.failed(target, "call", "upstream_failed", at_s, at_s)
    assert told.targets.recover_s([A, B], 115.0) == 15.0
    assert told.targets.recover_s([B], 115.0) == 25.0


def test_spills_are_told_by_agent_and_by_region() -> None:
    told = Told()
    told.targets.spilled("qwen-chat", "c", is_load=True)
    report = told.breakers.report("r", 100.0)
    assert (report.wanted_spilled, report.spilled_to) == ({"qwen-chat": 1}, {"c": 1})
