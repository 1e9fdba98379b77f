"""Who is on a tried release, how it is counted, and what a region and a Router keep of it."""

from __future__ import annotations

from dataclasses import replace

from serve_app.core.region_trial import RegionTrial
from serve_app.core.reports import RouterReport
from serve_app.core.trial import (
    MOST_BROKEN,
    NO_TRIAL,
    ReleaseCount,
    Stage,
    Trial,
    TrialReport,
    Tried,
    data_of,
    first_token_class,
    is_tried_on,
    user_hash,
    with_data,
)
from serve_app.core.trial_counts import TrialCounts
from tests.region_fakes import CHAT

TRIAL = Trial("r2", 3, "[]", {"cloud-a": Stage(5)})
NEW = replace(CHAT, release="f" * 64)


def test_a_share_of_users_is_on_the_tried_release_and_they_move_only_forward() -> None:
    places = [user_hash("r2", f"acme/user-{i}") for i in range(20_000)]
    on = {percent: {p for p in places if is_tried_on(p, percent)} for percent in (0, 5, 20, 50, 100)}
    assert on[0] == set() and on[100] == set(places)
    assert on[5] < on[20] < on[50]
    assert [round(len(on[p]) / 200) for p in (5, 20, 50)] == [5, 20, 50]
    # Another release is not tried on the same people first.
    others = {p for i, p in enumerate(places) if is_tried_on(user_hash("r3", f"acme/user-{i}"), 5)}
    assert len(others & on[5]) < 0.2 * len(on[5])


def test_a_release_of_data_is_its_templates_and_routes_in_one_form() -> None:
    one = [
        {"kind": k, "metadata": {"name": n}}
        for k, n in (("RouteTable", "r"), ("Tenant", "t"), ("PromptTemplate", "ja"))
    ]
    assert data_of(one) == data_of(reversed(one))
    other = [*one[:2], {"kind": "PromptTemplate", "metadata": {"name": "ko"}}]
    mixed = with_data(one, data_of(other))
    assert data_of(mixed) == data_of(other) and one[1] in mixed and one[2] not in mixed


def test_first_tokens_in_classes_give_a_percentile() -> None:
    total = ReleaseCount("a", "r")
    for ms in [20.0] * 95 + [4_000.0] * 5:
        total = total.plus(ReleaseCount("a", "r", 1, first_tokens=first_token_class(ms)))
    assert (total.requests, total.first_token_p95_ms) == (100, 23.842)
    assert ReleaseCount("a", "r").first_token_p95_ms is None


def on(trial: RegionTrial, plan: Trial | None, **more: object) -> None:
    stage = Stage(0) if plan is None else plan.stages.get("cloud-a", Stage(0))
    trial.take_plan(plan, stage, {NEW.name: NEW}, **{"fault": "", **more})  # type: ignore[arg-type]


def test_a_region_tells_the_coordinator_what_was_counted_since_the_last_move() -> None:
    trial = RegionTrial()
    on(trial, TRIAL)
    counts = (ReleaseCount("qwen-chat", "r", 2),)
    trial.take(RouterReport("router", tried="r2", counts=counts))
    trial.take(RouterReport("router", tried="r2", counts=counts))
    trial.take(RouterReport("router", tried="r1", counts=counts))
    assert trial.report() == TrialReport("r2", 3, 5, counts=(ReleaseCount("qwen-chat", "r", 4),))
    trial.smoked(2, ["of an earlier move"])
    on(trial, replace(TRIAL, move=4, stages={"cloud-a": Stage(20)}))
    assert trial.report() == TrialReport("r2", 4, 20)
    trial.smoked(4, ["ja: the answer is empty"])
    assert (trial.report().smoke, trial.report().why) == ("failed", "ja: the answer is empty")
    on(trial, None)
    assert trial.report() == NO_TRIAL and trial.tried is None


def test_a_region_tries_only_what_differs_with_the_engine_it_has() -> None:
    trial = RegionTrial()
    on(trial, TRIAL)
    assert trial.canary(CHAT) == NEW
    assert trial.canary(NEW) is None
    assert trial.canary(replace(CHAT, app="qwen-chat--other")) is None
    on(trial, replace(TRIAL, stages={"cloud-a": Stage(0, smoke=True)}))
    assert trial.canary(CHAT) is None and trial.tried == Tried("r2", "[]", 0)


def test_documents_that_a_region_does_not_take_are_told_and_not_tried() -> None:
    trial = RegionTrial()
    on(trial, TRIAL, fault="no such agent")
    assert trial.tried is None
    assert trial.report() == TrialReport("r2", 3, 0, "failed", "no such agent")


def test_users_that_were_moved_back_stay_so_at_every_router_through_the_window() -> None:
    trial, counts = RegionTrial(), TrialCounts()
    on(trial, TRIAL)
    counts.begin("r2")
    counts.broke("r2", 7)
    counts.broke("r1", 8)
    assert counts.seen_by(Tried("r2", "[]", 5, frozenset({1}))).broken == {1, 7}
    trial.take(counts.on(RouterReport("router")))
    on(trial, replace(TRIAL, move=4))
    assert trial.tried is not None and trial.tried.broken == {7}
    trial.take(RouterReport("router", tried="r2", broken=tuple(range(MOST_BROKEN + 5))))
    assert len(trial.tried.broken) == MOST_BROKEN
    on(trial, replace(TRIAL, revision="r3"))
    assert trial.tried is not None and trial.tried.broken == frozenset()


def test_a_router_tells_its_counts_once() -> None:
    counts = TrialCounts()
    assert counts.on(RouterReport("router")) == RouterReport("router")
    counts.begin("r2")
    counts.add("r2", ReleaseCount("a", "r", 1, failed=1))
    counts.add("r2", ReleaseCount("a", "r", 1))
    counts.add("r1", ReleaseCount("a", "r", 1))
    assert counts.on(RouterReport("router")).counts == (ReleaseCount("a", "r", 2, failed=1),)
    assert counts.on(RouterReport("router")) == RouterReport("router", tried="r2")
