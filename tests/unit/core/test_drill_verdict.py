"""What a drill has shown, from requests and sights with exact times."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from serve_app.core.drill_verdict import (
    PROMISES,
    Asked,
    Drill,
    Run,
    Sight,
    Times,
    broken,
    late,
    percentile,
    promise_of,
    report,
    run_of,
)

TIMES = Times(fault_s=100.0, restore_s=106.0, back_s=150.0)
WELL = Sight(99.9, out=False, weight=1.0)
#: Taken out 0.8 s after the fault, probed at 151, full at 171.
SIGHTS = (
    WELL,
    Sight(100.3, out=False, weight=1.0),
    Sight(100.8, out=True, weight=0.1, detector="peer"),
    Sight(101.2, out=True, weight=0.1, detector="coordinator"),
    Sight(151.0, out=False, weight=0.1),
    Sight(161.0, out=False, weight=0.55),
    Sight(171.0, out=False, weight=1.0),
    Sight(172.0, out=False, weight=1.0),
)
WHOLE = Asked("b", 99.0, 99.4, "whole", 99.2)


def asked(**fields: object) -> Asked:
    return replace(Asked("b", 100.1, 101.0, "whole", 100.9), **fields)  # type: ignore[arg-type]


def test_the_numbers_of_a_region_that_was_killed() -> None:
    stream = (
        WHOLE,
        asked(retried=True),
        asked(retried=True, began_s=100.2, first_s=101.4, ended_s=101.5),
        asked(entry="a", ending="lost", first_s=None),
        asked(entry="a", ending="lost"),
        asked(ending="broken", first_s=100.2, ended_s=100.6),
        asked(began_s=120.0, first_s=120.2, ended_s=120.4),
    )
    run = run_of(PROMISES["kill-region"], stream, SIGHTS, TIMES)
    assert run == Run(0.8, "peer", 1.4, 20.0, 5, 2, 0, 1, 0)
    assert broken(PROMISES["kill-region"], run, stream, SIGHTS, TIMES) == []


def test_nobody_disturbed_is_a_failover_of_zero() -> None:
    assert run_of(PROMISES["partition"], (WHOLE, asked()), SIGHTS, TIMES).failover_s == 0.0


@pytest.mark.parametrize(
    ("disturbed", "failover_s"),
    [
        (asked(retried=True, first_s=102.5, ended_s=104.0), 2.5),
        (asked(ending="refused", first_s=None, ended_s=103.0), 3.0),
        (asked(ending="broken", first_s=100.2, ended_s=103.5), 3.5),
        (asked(ending="hung", first_s=None, ended_s=131.0), 31.0),
        (asked(began_s=90.0, retried=True, first_s=90.2, ended_s=99.9), 0.0),  # over before the fault
        (asked(began_s=106.0, retried=True, first_s=130.0, ended_s=130.1), 0.0),  # the fault was gone
        (asked(began_s=95.0, first_s=None, ending="hung", ended_s=125.0), 25.0),  # under way when it came
        (asked(began_s=101.0, first_s=121.0, ended_s=121.5), 21.0),  # late, though never tried again
        (asked(began_s=101.0, first_s=None, ended_s=121.0), 21.0),
        (asked(began_s=101.0, first_s=104.0, ended_s=120.0), 0.0),  # as late as one may be; its stream is long
        (asked(began_s=98.0, first_s=101.1, ended_s=101.2), 1.1),
        (asked(began_s=95.0, first_s=99.9, ended_s=104.0), 0.0),  # had its first byte before the fault
        (asked(began_s=106.0, first_s=116.0, ended_s=116.1), 0.0),
    ],
)
def test_who_was_disturbed_until_when(disturbed: Asked, failover_s: float) -> None:
    assert run_of(PROMISES["partition"], (WHOLE, disturbed), SIGHTS, TIMES).failover_s == failover_s


def test_who_waits_for_twenty_seconds_breaks_the_promise_of_ten() -> None:
    stream = (WHOLE, asked(began_s=100.5, first_s=120.5, ended_s=120.6))
    run = run_of(PROMISES["partition"], stream, SIGHTS, TIMES)
    assert broken(PROMISES["partition"], run, stream, SIGHTS, TIMES) == [
        "served again after 20.5 s, promised 10 s always"
    ]
    # Whom nobody takes out may be late.
    slow = (WELL, Sight(104.0, out=False, slow=True, weight=0.3), Sight(120.0, out=False, weight=1.0))
    run = run_of(PROMISES["slow"], stream, slow, TIMES)
    assert (run.failover_s, broken(PROMISES["slow"], run, stream, slow, TIMES)) == (20.5, [])


def test_a_fault_that_nobody_noticed() -> None:
    sights = (WELL, replace(WELL, at_s=120.0))
    run = run_of(PROMISES["partition"], (WHOLE,), sights, TIMES)
    assert (run.detected_s, run.detector) == (None, None)
    assert broken(PROMISES["partition"], run, (WHOLE,), sights, TIMES) == ["nobody noticed the fault"]


def test_each_broken_promise_is_told() -> None:
    stream = (
        asked(ending="refused", first_s=None, told="503 no_healthy_target"),
        asked(ending="cut", first_s=100.2),
        asked(ending="hung", first_s=None, ended_s=130.0),
        asked(ending="lost", first_s=None),
    )
    sights = (*SIGHTS[:5], Sight(160.0, out=True, weight=0.1), Sight(190.0, out=False, weight=1.0))
    run = run_of(PROMISES["partition"], stream, sights, TIMES)
    assert run == Run(0.8, "peer", 30.0, 39.0, 3, 1, 1, 1, 1)
    assert broken(PROMISES["partition"], run, stream, sights, TIMES) == [
        "served again after 30.0 s, promised 10 s always",
        "1 requests lost their entry, though every entry was there",
        "1 requests failed without a first byte, promised none: 503 no_healthy_target",
        "1 streams ended without an error in them",
        "1 requests hung",
        "full share after 39.0 s, promised 30 s",
        "the region failed a second time, 9.0 s after it was back",
    ]


def test_a_region_that_never_came_back_and_one_that_came_back_at_once() -> None:
    gone = run_of(PROMISES["partition"], (WHOLE,), SIGHTS[:4], TIMES)
    assert gone.recovered_s is None
    assert broken(PROMISES["partition"], gone, (WHOLE,), SIGHTS[:4], TIMES) == [
        "the region did not come back to its full share"
    ]
    sights = (*SIGHTS[:4], Sight(151.0, out=False, weight=1.0))
    at_once = run_of(PROMISES["partition"], (WHOLE,), sights, TIMES)
    assert at_once.recovered_s == 0.0
    assert broken(PROMISES["partition"], at_once, (WHOLE,), sights, TIMES) == [
        "the region came back with its full share at once, without a ramp"
    ]


def test_of_a_world_that_is_left_as_it_is_no_recovery_is_expected() -> None:
    promise = promise_of("kill-region", restored=False)
    run = run_of(promise, (WHOLE,), SIGHTS[:4], TIMES)
    assert (run.recovered_s, broken(promise, run, (WHOLE,), SIGHTS[:4], TIMES)) == (None, [])
    assert promise_of("kill-region") is PROMISES["kill-region"]


def test_a_stall_has_to_be_noticed_in_time() -> None:
    sights = (WELL, Sight(105.1, out=True, weight=0.1, detector="peer"), *SIGHTS[4:])
    run = run_of(PROMISES["stall"], (WHOLE,), sights, TIMES)
    assert run.detected_s == 5.1
    assert broken(PROMISES["stall"], run, (WHOLE,), sights, TIMES) == ["noticed after 5.1 s, promised 5 s"]


def test_slow_is_noticed_and_not_taken_out() -> None:
    sights = (WELL, Sight(104.0, out=False, slow=True, weight=0.3), Sight(120.0, out=False, weight=1.0))
    run = run_of(PROMISES["slow"], (WHOLE,), sights, TIMES)
    assert (run.detected_s, run.recovered_s) == (4.0, None)
    assert broken(PROMISES["slow"], run, (WHOLE,), sights, TIMES) == []
    assert broken(PROMISES["slow"], run, (WHOLE,), SIGHTS, TIMES) == ["the region was taken out, though it could serve"]
    assert broken(PROMISES["slow"], run_of(PROMISES["slow"], (WHOLE,), (WELL,), TIMES), (WHOLE,), (WELL,), TIMES) == [
        "nobody noticed that the region was slow"
    ]


@pytest.mark.parametrize("drill", ["kill-coordinator", "half-partition"])
def test_no_request_at_all_fails_without_the_coordinator(drill: Drill) -> None:
    sights = (WELL, replace(WELL, at_s=110.0))
    run = run_of(PROMISES[drill], (WHOLE, asked()), sights, TIMES)
    assert asdict(run) == {
        "detected_s": None,
        "detector": None,
        "failover_s": 0.0,
        "recovered_s": None,
        "requests": 2,
        "lost_entry": 0,
        "failed_before_first_byte": 0,
        "failed_mid_stream": 0,
        "hung": 0,
    }
    assert broken(PROMISES[drill], run, (WHOLE,), sights, TIMES) == []
    stream = (asked(ending="broken", first_s=100.3, ended_s=100.5),)
    failed = run_of(PROMISES[drill], stream, sights, TIMES)
    assert broken(PROMISES[drill], failed, stream, sights, TIMES) == ["1 requests failed mid-stream, promised 0"]


def test_the_report_is_the_json_that_was_agreed_on() -> None:
    runs = [Run(0.8, "peer", failover_s, 20.0, 40, 3, 0, 1, 0) for failover_s in (1.0, 3.0, 2.0)]
    told = report("kill-region", "cloud-a", runs)
    assert list(told) == ["drill", "region", "runs", "failover_s"]
    assert list(told["runs"][0]) == [
        *("detected_s", "detector", "failover_s", "recovered_s", "requests", "lost_entry"),
        *("failed_before_first_byte", "failed_mid_stream", "hung"),
    ]
    assert told["failover_s"] == {"p50": 2.0, "p95": 3.0, "max": 3.0}


def test_how_often_a_failover_may_be_late() -> None:
    one = Run(0.8, "peer", 2.0, 20.0, 40, 3, 0, 1, 0)
    runs = [one] * 19 + [replace(one, failover_s=9.0)]
    assert late("kill-region", runs) == []
    assert late("kill-region", [*runs[:-2], runs[-1], runs[-1]]) == ["served again within 9.0 s at p95, promised 3 s"]
    assert late("stall", [replace(one, failover_s=9.0)]) == []


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(i) for i in range(1, 21)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [10.0, 19.0, 20.0]
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.5) == 7.0


def test_every_drill_promises_something() -> None:
    assert list(PROMISES) == list(Drill.__args__)  # type: ignore[attr-defined]
