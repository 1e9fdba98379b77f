"""Rollouts as transcripts: what is seen of regions, on a clock that is an argument, and the transitions that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.guards import Guards, breach
from serve_app.core.rollout import ENDED, TABLE, Rollout, RolloutPolicy, Stage, Unfit, after
from serve_app.core.rollout_driver import Driver, Sight
from serve_app.core.trial import ReleaseCount, TrialReport, first_token_class

OLD, NEW = "o" * 64, "n" * 64
POLICY = RolloutPolicy(steps=(5, 100), hold_s=60.0, min_samples=10, patience_s=600.0)


def rollout(**changes: Any) -> Rollout:
    made = Rollout("r2", "ops", 1.0, {"chat": (OLD, NEW)}, ("edge-1", "cloud-b", "cloud-a"), POLICY, "[2]", "[1]")
    return replace(made, **changes)


def count(release: str, requests: int = 10, **more: Any) -> ReleaseCount:
    return ReleaseCount("chat", release, requests, **more)


def driver(**changes: Any) -> Driver:
    return Driver(rollout(**changes), 0.0)


def seen(made: Driver, *counts: ReleaseCount, **more: Any) -> dict[str, Sight]:
    """Every region as it does what the rollout asks of it now; the current one with these counts."""
    now, stages = made.rollout, made.rollout.stages()
    sights = {}
    for name in now.regions:
        percent = stages[name].percent if name in stages else 0
        report = TrialReport(now.revision, now.move, percent, more.get("smoke", ""), more.get("why", ""), counts)
        sights[name] = Sight(True, False, more.get("has_it", False), report)
    return sights


def shares(made: Driver) -> dict[str, int]:
    return {name: stage.percent for name, stage in made.rollout.stages().items()}


def test_a_whole_rollout_goes_from_the_edge_to_the_primary_and_each_step_takes_its_hold_and_its_sample() -> None:
    made, now_s, told = driver(), 0.0, []
    while not made.rollout.is_over:
        told.append((made.rollout.phase, made.rollout.current, shares(made)))
        now_s += 60.0
        good = seen(made, count(OLD), count(NEW), smoke="passed", has_it=made.rollout.is_settling)
        assert made.look(good, now_s) is not None
    assert told == [
        ("smoke", "edge-1", {"edge-1": 0}),
        ("canary", "edge-1", {"edge-1": 5}),
        ("canary", "edge-1", {"edge-1": 100}),
        ("smoke", "cloud-b", {"edge-1": 100, "cloud-b": 0}),
        ("canary", "cloud-b", {"edge-1": 100, "cloud-b": 5}),
        ("canary", "cloud-b", {"edge-1": 100, "cloud-b": 100}),
        ("smoke", "cloud-a", {"edge-1": 100, "cloud-b": 100, "cloud-a": 0}),
        ("canary", "cloud-a", {"edge-1": 100, "cloud-b": 100, "cloud-a": 5}),
        ("canary", "cloud-a", {"edge-1": 100, "cloud-b": 100, "cloud-a": 100}),
        ("adopting", "cloud-a", {"edge-1": 100, "cloud-b": 100, "cloud-a": 100}),
    ]
    assert (made.rollout.phase, made.rollout.stages()) == ("done", {})


def test_a_step_waits_for_both_its_hold_and_its_sample() -> None:
    made = driver(phase="canary")
    assert made.look(seen(made, count(NEW, 10)), 59.0) is None
    assert made.waits == "1 s of its hold"
    assert made.look(seen(made, count(NEW, 7)), 61.0) is None
    assert made.waits == "3 of 10 requests"
    found = made.look(seen(made, count(NEW, 10)), 62.0)
    assert found is not None and (found.phase, found.step, found.move) == ("canary", 1, 2)


def test_what_is_reported_of_another_move_says_nothing() -> None:
    made = driver(phase="canary", move=4)
    old = {n: replace(s, trial=replace(s.trial, move=3)) for n, s in seen(made, count(NEW, 99, failed=99)).items()}
    assert made.look(old, 100.0) is None
    assert made.waits == "edge-1 has not taken this step yet"


@pytest.mark.parametrize(("region", "phase", "left"), [(0, "rolled_back", {}), (1, "halted", {"edge-1": 100})])
def test_a_failed_region_rolls_itself_back_and_stops_the_rest(region: int, phase: str, left: dict[str, int]) -> None:
    made = driver(phase="canary", region=region)
    found = made.look(seen(made, count(OLD), count(NEW, 10, failed=3)), 1.0)
    assert found is not None and found.phase == phase and shares(made) == left
    assert found.why == f"{made.rollout.current}: 3 of 10 failed (30%), 0% before; allowed: 5% more"


def test_smoke_tests_that_fail_are_the_reason() -> None:
    made = driver()
    found = made.look(seen(made, smoke="failed", why="ja: the answer is in en"), 1.0)
    assert found is not None and found.why == "edge-1: smoke tests: ja: the answer is in en"


def test_a_region_that_can_no_longer_make_the_release_fails_in_any_step() -> None:
    made = driver(phase="canary", region=1)
    found = made.look(seen(made, smoke="failed", why="it does not take its documents"), 1.0)
    assert found is not None and (found.phase, found.why) == ("halted", "cloud-b: it does not take its documents")


def test_a_halted_rollout_goes_on_with_the_smoke_tests_of_the_region_that_failed() -> None:
    made = driver(phase="halted", region=1, step=1, move=9)
    found = made.steer("resume", "ops", 5.0)
    assert (found.phase, found.region, found.step, found.move) == ("smoke", 1, 0, 10)


def test_a_region_that_is_lost_in_its_step_is_waited_for_and_then_the_rest_stops() -> None:
    made = driver(phase="canary", region=1)
    away = {**seen(made), "cloud-b": Sight(False)}
    assert made.look(away, 600.0) is None and made.waits == "cloud-b is not linked"
    found = made.look(away, 601.0)
    assert found is not None
    assert (found.phase, found.why) == ("halted", "cloud-b: not done after 600 s: cloud-b is not linked")


def test_a_drained_region_has_no_sample_to_wait_for() -> None:
    made = driver(phase="canary")
    sights = {n: replace(s, drained=True) for n, s in seen(made).items()}
    assert made.look(sights, 60.0) is not None


def test_guards_watch_a_paused_canary_too() -> None:
    made = driver(phase="canary")
    made.steer("pause", "ops", 1.0)
    assert made.rollout.phase == "canary_paused" and shares(made) == {"edge-1": 5}
    assert made.look(seen(made, count(NEW)), 999.0) is None
    assert made.look(seen(made, count(OLD), count(NEW, failed=9)), 999.0) is not None
    assert made.rollout.phase == "rolled_back"


def test_what_does_not_fit_the_phase_is_refused_and_what_would_is_named() -> None:
    with pytest.raises(Unfit, match="rollout r2 is canary; allowed now: pause, abort"):
        after(rollout(phase="canary"), "resume")
    with pytest.raises(Unfit, match="rollout r2 is reverting; allowed now: nothing"):
        after(rollout(phase="reverting"), "abort")


def test_every_phase_but_the_ends_can_be_aborted_or_ends_by_itself() -> None:
    assert {phase for phase, row in TABLE.items() if "abort" not in row} == ENDED | {"reverting"}


def test_an_abort_while_regions_adopt_takes_all_back_to_the_documents_before() -> None:
    made = driver(phase="adopting", region=2)
    made.steer("abort", "ops", 1.0)
    assert made.rollout.phase == "reverting" and set(made.rollout.stages().values()) == {Stage(100)}
    assert made.look(seen(made), 2.0) is None
    assert made.waits == "documents are not in force yet in cloud-a, cloud-b, edge-1"
    made.look({**seen(made, has_it=True), "edge-1": Sight(False)}, 3.0)
    assert (made.rollout.phase, made.rollout.why) == ("aborted", "abort by ops")


REFUSES = "revision r2 is refused: no template of this language"


def refused(made: Driver) -> dict[str, Sight]:
    """Every region has the documents, but for cloud-b."""
    return {**seen(made, has_it=True), "cloud-b": Sight(True, why=REFUSES)}


def test_a_region_that_refuses_the_documents_takes_all_back_when_its_time_is_over() -> None:
    made = driver(phase="adopting", region=2)
    assert made.look(refused(made), 600.0) is None and not made.is_late
    assert made.waits == f"documents are not in force yet in cloud-b ({REFUSES})"
    assert made.look(refused(made), 601.0) is not None
    assert (made.rollout.phase, made.rollout.why) == ("reverting", f"not in force after 600 s in cloud-b ({REFUSES})")
    made.look(seen(made, has_it=True), 602.0)
    assert (made.rollout.phase, made.rollout.why) == ("aborted", f"not in force after 600 s in cloud-b ({REFUSES})")


@pytest.mark.parametrize("back", [{"phase": "adopting", "is_back": True}, {"phase": "reverting"}])
def test_what_goes_back_stays_so_when_a_region_refuses_and_lets_others_be_applied(back: dict[str, Any]) -> None:
    made = driver(region=2, why="rollback of chat by ops", **back)
    assert made.look(refused(made), 600.0) is None and not made.is_late
    assert made.look(refused(made), 601.0) is None and made.is_late
    assert made.waits == f"documents are not in force yet in cloud-b ({REFUSES})"
    assert set(made.rollout.stages().values()) == {Stage(100)}
    found = made.steer("replaced", "ops", 602.0)
    assert (found.phase, found.why, made.is_late) == ("aborted", "rollback of chat by ops; replaced by ops", False)


def test_a_region_that_takes_the_documents_after_all_is_late_no_more() -> None:
    made = driver(phase="adopting", is_back=True)
    made.look(refused(made), 601.0)
    made.look(seen(made, has_it=True), 602.0)
    assert made.rollout.phase == "done" and not made.is_late


def test_nobody_is_late_while_nobody_is_there() -> None:
    made = driver(phase="adopting")
    assert made.look({name: Sight(False) for name in made.rollout.regions}, 9999.0) is None and not made.is_late


def test_the_last_step_of_a_region_is_judged_against_the_steps_before() -> None:
    made = driver(phase="canary")
    made.look(seen(made, count(OLD, 20, truncated=2), count(NEW)), 60.0)
    assert made.rollout.baseline == ReleaseCount("", "", 20, truncated=2)
    found = made.look(seen(made, count(NEW, 10, truncated=4)), 61.0)
    assert found is not None and "4 of 10 were cut short (40%), 10% before" in found.why


SLOW, QUICK = first_token_class(900.0), first_token_class(90.0)
TEN = tuple(10 * n for n in SLOW), tuple(10 * n for n in QUICK)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (None, count(NEW, 9, failed=9), ""),
        (None, count(NEW, 10, failed=1), "1 of 10 failed (10%), 0% before; allowed: 5% more"),
        (None, count(NEW, 10, truncated=10), ""),
        (count(OLD, failed=5), count(NEW, failed=5), ""),
        (count(OLD, heard=10), count(NEW, heard=10, mismatched=1), "1 of 10 were in another language (10%), 0% before"),
        (count(OLD, heard=10), count(NEW, heard=9, mismatched=9), ""),
        (count(OLD, first_tokens=TEN[1]), count(NEW, first_tokens=TEN[0]), "first token p95 1059 ms, 91 ms before"),
        (count(OLD, first_tokens=TEN[0]), count(NEW, first_tokens=TEN[0]), ""),
    ],
)
def test_guards(old: ReleaseCount | None, new: ReleaseCount, said: str) -> None:
    found = breach(Guards(), old, new, 10)
    assert found.startswith(said) and bool(found) == bool(said)
