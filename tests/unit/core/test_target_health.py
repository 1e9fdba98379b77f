"""From replicas' pushes to one health and one load: who is proven, who is slow, what no data is, and the way back."""

from __future__ import annotations

import math

import pytest

from serve_app.core.reports import ReplicaReport
from serve_app.core.snapshots import Load
from serve_app.core.target_health import Ramp, Replicas, clean, merged


def push(replica: str = "r1", *, proven: bool = True, **load: float) -> ReplicaReport:
    return ReplicaReport("qwen-chat--12345678", replica, "e" * 64, proven, Load(**load))  # type: ignore[arg-type]


def told(*reports: ReplicaReport, at_s: float = 100.0) -> Replicas:
    made = Replicas()
    for report in reports:
        made.take(report, at_s)
    return made


def verdict(replicas: Replicas, now_s: float = 100.0, *, may_sleep: bool = False) -> tuple[str, str]:
    standing = replicas.standing(now_s, may_sleep=may_sleep)
    return standing.health, standing.why


def test_nobody_has_reported_yet_is_no_claim() -> None:
    assert verdict(Replicas()) == ("unknown", "starting: no replica has reported yet")


def test_tokens_are_the_proof() -> None:
    assert verdict(told(push())) == ("healthy", "")
    assert verdict(told(push(proven=False))) == ("ejected", "no token from 1 replica")
    both = told(push(proven=False), push("r2", proven=False))
    assert verdict(both) == ("ejected", "no token from 2 replicas")


def test_one_proven_replica_keeps_the_target_and_counts_alone() -> None:
    standing = told(push(proven=False), push("r2")).standing(100.0, may_sleep=False)
    assert (standing.health, standing.why, standing.replicas) == ("healthy", "no token from 1 of 2 replicas", 1)


def test_how_old_a_report_may_be_is_told() -> None:
    replicas = told(push(waiting=3))
    standings = [replicas.standing(at_s, may_sleep=False, stale_s=5.0) for at_s in (105.0, 105.1)]
    assert [s.health for s in standings] == ["healthy", "stale"]


def test_after_three_seconds_of_silence_there_is_no_data() -> None:
    replicas = told(push(waiting=3))
    assert verdict(replicas, 103.0) == ("healthy", "")
    standing = replicas.standing(103.1, may_sleep=False)
    assert (standing.health, standing.why, standing.lost) == ("stale", "no replica has reported for 3.1 s", False)
    assert standing.load == Load()
    assert replicas.standing(110.1, may_sleep=False).lost


def test_an_engine_that_may_sleep_is_not_missed() -> None:
    assert verdict(told(push()), 200.0, may_sleep=True) == ("unknown", "no replica runs")


def test_who_is_silent_does_not_count_beside_who_reports() -> None:
    replicas = told(push("r1", proven=False))
    replicas.take(push("r2"), 104.0)
    assert verdict(replicas, 104.0) == ("healthy", "")


@pytest.mark.parametrize(
    ("load", "why"),
    [({"waiting": 21}, "21 wait for 1 replica"), ({"first_token_p95_ms": 1501.0}, "first token after 1501 ms")],
)
def test_late_is_slow_not_out(load: dict[str, float], why: str) -> None:
    assert verdict(told(push(**load))) == ("slow", why)


@pytest.mark.parametrize(
    "load",
    [{"waiting": 20}, {"first_token_p95_ms": 1500.0}],
)
def test_at_the_limit_is_not_slow(load: dict[str, float]) -> None:
    assert verdict(told(push(**load))) == ("healthy", "")


def test_twice_the_replicas_may_have_twice_the_queue() -> None:
    assert verdict(told(push(waiting=20), push("r2", waiting=20))) == ("healthy", "")
    assert verdict(told(push(waiting=20), push("r2", waiting=21))) == ("slow", "41 wait for 2 replicas")


def test_slow_ends_clearly_below_the_limit() -> None:
    replicas = told(push(waiting=21))
    assert verdict(replicas)[0] == "slow"
    replicas.take(push(waiting=16), 101.0)
    assert verdict(replicas, 101.0)[0] == "slow"
    replicas.take(push(waiting=15), 102.0)
    assert verdict(replicas, 102.0)[0] == "healthy"
    replicas.take(push(waiting=16), 103.0)
    assert verdict(replicas, 103.0)[0] == "healthy"


def test_counts_add_up_and_the_worst_percentile_counts() -> None:
    one = Load(10.0, 50.0, 1, 4, 0.2, 100.0, 0.0)
    two = Load(30.0, 20.0, 2, 3, 0.4, 80.0, 0.5)
    assert merged([one, two]) == Load(30.0, 50.0, 3, 7, pytest.approx(0.3), 100.0, 0.25)


def test_no_data_of_one_replica_is_not_zero() -> None:
    assert merged([Load(), Load(waiting=2)]) == Load(waiting=2)
    assert merged([Load(), Load()]) == Load()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_a_number_that_cannot_be_is_no_data(value: float) -> None:
    assert clean(Load(queue_wait_p95_ms=value, running=3)) == Load(running=3)
    assert verdict(told(push(first_token_p95_ms=value))) == ("healthy", "")


def test_what_was_never_out_has_its_whole_share() -> None:
    ramp = Ramp()
    assert [ramp.fit(t) for t in (0.0, 1.0)] == [1.0, 1.0]


def test_the_way_back_takes_twenty_seconds_from_the_first_proof() -> None:
    ramp = Ramp()
    ramp.out()
    shares = [ramp.fit(t) for t in (100.0, 110.0, 119.9, 120.0, 121.0)]
    assert shares == [pytest.approx(x) for x in (0.1, 0.55, 0.9955, 1.0, 1.0)]


def test_failing_again_begins_the_way_again() -> None:
    ramp = Ramp()
    ramp.out()
    assert ramp.fit(100.0) == 0.1
    ramp.out()
    assert ramp.fit(115.0) == 0.1
    assert ramp.fit(125.0) == pytest.approx(0.55)


def test_starts_that_fail_are_counted_until_a_new_replica_reports_or_nobody_cares_any_more() -> None:
    replicas = told(push())
    assert replicas.failing(100.0) == ""
    replicas.failed_start("too slow", 101.0)
    assert replicas.failing(101.0) == "a replica failed to start once: too slow"
    replicas.failed_start("no memory", 130.0)
    # The one that serves all the time says nothing of them.
    replicas.take(push(), 131.0)
    assert replicas.failing(730.0) == "a replica failed to start 2 times: no memory"
    assert replicas.failing(730.1) == ""
    replicas.take(push("r2"), 732.0)
    assert replicas.failing(700.0) == ""
    replicas.failed_start("again", 740.0)
    assert replicas.failing(740.0) == "a replica failed to start once: again"
