"""Rollouts under any order of events, with a coordinator that is killed at every state."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.rollout import TABLE, Rollout, RolloutPolicy, Unfit
from serve_app.core.rollout_driver import Driver, Sight
from serve_app.core.rollout_store import Past, history_of, history_text, rollout_of, rollout_text
from serve_app.core.trial import ReleaseCount, TrialReport, is_tried_on

OLD, NEW = "o" * 64, "n" * 64
REGIONS = ("edge-1", "cloud-b", "cloud-a")
START = Rollout(
    "r2", "ops", 1.0, {"chat": (OLD, NEW)}, REGIONS, RolloutPolicy(hold_s=10.0, min_samples=5), "[2]", "[1]"
)
PLACES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)
EVENTS = st.lists(
    st.sampled_from(["good", "bad", "away", "late", "kill", "pause", "resume", "abort"]), min_size=1, max_size=60
)
UNRULY = st.lists(st.sampled_from(["good", "refuses", "late", "kill", "abort"]), min_size=1, max_size=60)


def sights(now: Rollout, *, bad: bool = False, linked: bool = True, has_it: bool = True) -> dict[str, Sight]:
    counts = (ReleaseCount("chat", NEW, 5, failed=5 if bad else 0),)
    smoke = "failed" if bad else "passed"
    report = TrialReport(now.revision, now.move, 0, smoke, "no", counts)  # type: ignore[arg-type]
    return {name: Sight(linked, False, now.is_settling and has_it, report) for name in REGIONS}


def one(driver: Driver, event: str, now_s: float) -> Driver:
    """The driver after an event; a killed coordinator leaves only what it has stored."""
    if event == "kill":
        stored = rollout_of(rollout_text(driver.rollout))
        assert stored == driver.rollout
        return Driver(stored, now_s)
    try:
        if event in ("pause", "resume", "abort"):
            driver.steer(event, "ops", now_s)  # type: ignore[arg-type]
        else:
            bad, linked, has_it = event == "bad", event != "away", event != "refuses"
            driver.look(sights(driver.rollout, bad=bad, linked=linked, has_it=has_it), now_s)
    except Unfit:
        assert event not in TABLE[driver.rollout.phase]
    return driver


@settings(deadline=None)
@given(EVENTS)
def test_a_rollout_moves_along_its_table_and_only_one_region_at_a_time_has_a_part_of_its_users(
    events: list[str],
) -> None:
    driver, now_s = Driver(START, 0.0), 0.0
    for event in events:
        now_s += 5000.0 if event == "late" else 11.0
        before = driver.rollout
        driver = one(driver, event, now_s)
        after = driver.rollout
        if after.move != before.move:
            assert after.move == before.move + 1 and after.phase in TABLE[before.phase].values()
        percents = [after.stages()[name].percent for name in REGIONS if name in after.stages()]
        assert all(p == 100 for p in percents[:-1]) and list(after.stages()) == list(REGIONS[: len(percents)])
        if before.is_over:
            assert after == before


@settings(deadline=None)
@given(EVENTS)
def test_wherever_it_is_killed_a_good_release_gets_through_once_it_is_let(events: list[str]) -> None:
    driver, now_s = Driver(START, 0.0), 0.0
    for event in events:
        now_s += 11.0
        if event not in ("bad", "abort"):
            driver = one(driver, event, now_s)
    for _ in range(40):
        for event in ("kill", "resume", "good"):
            now_s += 11.0
            driver = one(driver, event, now_s)
            if event != "good":
                continue
            now_s += 11.0
            driver = one(driver, "good", now_s)
    assert driver.rollout.phase == "done"


@settings(deadline=None)
@given(UNRULY)
def test_a_region_that_refuses_the_documents_never_brings_back_a_release_that_is_taken_back(events: list[str]) -> None:
    start = replace(START, phase="adopting", is_back=True)
    driver, now_s = Driver(start, 0.0), 0.0
    for event in events:
        now_s += 5000.0 if event == "refuses" else 11.0
        driver = one(driver, event, now_s)
        assert "abort" in events or driver.rollout.phase in ("adopting", "done")


@settings(deadline=None)
@given(EVENTS, PLACES)
def test_users_of_a_region_move_only_forward_until_it_is_taken_back(events: list[str], places: list[int]) -> None:
    driver, now_s = Driver(START, 0.0), 0.0
    on: dict[str, set[int]] = {name: set() for name in REGIONS}
    for event in events:
        if event in ("bad", "abort", "late"):
            continue
        now_s += 11.0
        driver = one(driver, event, now_s)
        for name in REGIONS:
            stage = driver.rollout.stages().get(name)
            percent = 0 if stage is None else stage.percent
            now_on = {place for place in places if is_tried_on(place, percent)}
            # At the end everybody is on it, and nothing is tried any more.
            assert on[name] <= now_on or driver.rollout.is_over
            on[name] = now_on


@given(st.lists(st.text(max_size=20), max_size=12))
def test_the_last_releases_are_kept_and_read_back(whys: list[str]) -> None:
    past = [Past(f"r{i}", "ops", float(i), "done", why, {"chat": (OLD, NEW)}, "[]", "[]") for i, why in enumerate(whys)]
    assert history_of(history_text(past)) == tuple(past[-8:])


@given(st.sampled_from(["phase", "region", "policy", "agents", "baseline"]), st.integers(-3, 99))
def test_what_is_no_rollout_is_refused(field: str, value: int) -> None:
    plain = json.loads(rollout_text(START))
    if field == "region" and -3 <= value < 3:
        return
    text = json.dumps({**plain, field: value})
    try:
        rollout_of(text)
    except ValueError as error:
        assert str(error).startswith("is no rollout: ")
    else:
        raise AssertionError(text)


def test_a_phase_of_another_version_is_refused() -> None:
    text = rollout_text(replace(START, phase="flying"))  # type: ignore[arg-type]
    try:
        rollout_of(text)
    except ValueError as error:
        assert "phase 'flying'" in str(error)
