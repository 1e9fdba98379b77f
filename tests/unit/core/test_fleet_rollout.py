"""Rollouts in the coordinator's state: what plans carry of them, what is stored, and what a restart goes on with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_drift import drift_of
from serve_app.core.fleet_events import Apply, Audit, KnownRegion, Refused, Restore, Roll, Steer, Tick, Wanted
from serve_app.core.fleet_rollout import Rollouts
from serve_app.core.reports import Plan
from serve_app.core.rollout import Rollout, RolloutPolicy
from serve_app.core.rollout_driver import Driver
from serve_app.core.rollout_store import history_of, rollout_of
from serve_app.core.trial import ReleaseCount, Stage, TrialReport
from tests.unit.core.test_fleet import World, audits, plans, state, target, up

OLD, NEW = "r" * 64, "n" * 64
POLICY = RolloutPolicy(steps=(50, 100), hold_s=0.0, min_samples=1)


def documents(system: str) -> str:
    return json.dumps([{"kind": "PromptTemplate", "metadata": {"name": "ja"}, "spec": {"system": system}}])


def wanted(revision: str, system: str, release: str) -> Wanted:
    expected = {("a", "chat"): release, ("b", "chat"): release}
    return Wanted(
        (KnownRegion("a"), KnownRegion("b")), revision=revision, documents=documents(system), expected=expected
    )


BEFORE, AFTER = wanted("r1", "old", OLD), wanted("r2", "new", NEW)
ROLLOUT = Rollout("r2", "ops", 5.0, {"chat": (OLD, NEW)}, ("b", "a"), POLICY, AFTER.documents, BEFORE.documents)
ROLL = Roll(ROLLOUT, AFTER, BEFORE)


def begun() -> World:
    world = up(BEFORE)
    for name in "ab":
        world.report(name, replace(state(name), revision="r1"))
    world.do(Tick())
    world.do(ROLL)
    return world


def last_plan(world: World) -> Plan:
    return world.fleet.plan()


def does(world: World, region: str, **more: Any) -> None:
    """A region that does what the plan asks of it, well."""
    trial = last_plan(world).trial
    report = TrialReport()
    if trial is not None and region in trial.stages:
        counts = (ReleaseCount("chat", NEW, 5),)
        report = TrialReport(trial.revision, trial.move, trial.stages[region].percent, "passed", "", counts)
    world.report(region, replace(state(region), **{"revision": world.fleet.wanted.revision, "trial": report, **more}))


def through(world: World, beats: int = 12) -> list[tuple[str, str]]:
    """Beats until the rollout is over; its phases by the audit log."""
    told = []
    for _ in range(beats):
        for name in "ab":
            does(world, name)
        told += audits(world.beat(), "rollout")
    return [(entry.region, entry.after) for entry in told]


def test_a_rollout_goes_through_the_fleet_and_its_documents_are_in_force_at_the_end() -> None:
    world = begun()
    (plan,) = plans(world.out)
    assert plan.trial is not None and plan.documents == BEFORE.documents
    assert plan.trial.stages == {"b": Stage(0, smoke=True)} and plan.trial.expected == {("b", "chat"): NEW}
    assert json.loads(plan.trial.data)[0]["spec"] == {"system": "new"}
    assert through(world) == [
        ("b", "canary 50 %"),
        ("b", "canary 100 %"),
        ("a", "smoke"),
        ("a", "canary 50 %"),
        ("a", "canary 100 %"),
        ("", "adopting"),
        ("", "done"),
    ]
    assert (last_plan(world).revision, last_plan(world).documents, last_plan(world).trial) == (
        "r2",
        AFTER.documents,
        None,
    )
    assert world.fleet.facts.rollout == ""
    (past,) = history_of(world.fleet.facts.history)
    assert (past.outcome, past.agents) == ("done", {"chat": (OLD, NEW)})


def test_one_rollout_at_a_time_and_no_other_documents_meanwhile() -> None:
    world = begun()
    (refused,) = world.do(ROLL)
    assert isinstance(refused, Refused) and refused.faults[0].startswith("a rollout of chat runs, r2, by ops; wait for")
    (refused,) = world.do(Apply("ops", replace(BEFORE, revision="r9")))
    assert isinstance(refused, Refused) and "grix rollout abort" in refused.faults[0]
    assert world.do(Steer("ops", "resume"))[0] == Refused(("rollout r2 is smoke; allowed now: pause, abort",))


def test_an_abort_is_told_at_once_and_no_region_keeps_anything_of_it() -> None:
    world = begun()
    does(world, "b")
    world.beat()
    effects = world.do(Steer("eve", "abort"))
    assert audits(effects, "rollout") == [Audit("eve", "rollout", "", "canary", "aborted", "abort by eve")]
    (plan,) = plans(effects)
    assert plan.trial is None and plan.documents == BEFORE.documents
    assert world.do(Steer("eve", "abort")) == [Refused(("no rollout runs; begin one with: grix rollout start PATH…",))]


def test_a_coordinator_that_starts_anew_goes_on_where_the_one_before_ended() -> None:
    world = begun()
    does(world, "b")
    world.beat()
    facts = world.fleet.facts
    stored = rollout_of(facts.rollout)
    assert stored is not None and (stored.phase, stored.move) == ("canary", 2)
    rollouts = Rollouts(Driver(stored, 1000.0), AFTER, BEFORE)
    anew = World(BEFORE, facts)
    anew.fleet = Fleet(BEFORE, facts, 1000.0, rollouts)
    assert last_plan(anew).trial == last_plan(world).trial
    for name in "ab":
        anew.open(name)
    assert through(anew)[-1] == ("", "done")


def test_a_region_that_has_failed_takes_nobody_else_with_it() -> None:
    world = begun()
    does(world, "b")
    world.beat()
    trial = last_plan(world).trial
    assert trial is not None
    bad = TrialReport("r2", trial.move, 50, "passed", "", (ReleaseCount("chat", NEW, 5, failed=5),))
    does(world, "b", trial=bad)
    (entry,) = audits(world.beat(), "rollout")
    assert (entry.after, entry.why) == ("rolled_back", "b: 5 of 5 failed (100%), 0% before; allowed: 5% more")
    assert last_plan(world).trial is None
    assert history_of(world.fleet.facts.history)[0].outcome == "rolled_back"


def test_a_rollback_tells_all_regions_at_once_and_waits_for_their_documents() -> None:
    world = begun()
    through(world)
    back = replace(
        ROLLOUT,
        revision="r1",
        agents={"chat": (NEW, OLD)},
        documents=BEFORE.documents,
        before=AFTER.documents,
        phase="adopting",
        why="rollback of chat by ops",
    )
    (plan,) = plans(world.do(Roll(back, BEFORE, AFTER)))
    assert plan.trial is not None and plan.trial.stages == {"a": Stage(100), "b": Stage(100)}
    assert plan.documents == BEFORE.documents and json.loads(plan.trial.data)[0]["spec"] == {"system": "old"}
    assert through(world) == [("", "done")]
    assert history_of(world.fleet.facts.history)[-1].why == "rollback of chat by ops"


def adopting(*, is_back: bool = False) -> World:
    """Every region is to have the documents, and b refuses them."""
    world = up(BEFORE)
    for name in "ab":
        world.report(name, replace(state(name), revision="r1"))
    world.do(Tick())
    policy = replace(POLICY, patience_s=5.0)
    world.do(Roll(replace(ROLLOUT, phase="adopting", is_back=is_back, policy=policy), AFTER, BEFORE))
    return world


def refuse(world: World, beats: int) -> list[Audit]:
    told = []
    for _ in range(beats):
        does(world, "a")
        does(
            world, "b", revision="r1", refused=world.fleet.wanted.revision, why="revision r2 is refused: no such agent"
        )
        told += audits(world.beat(), "rollout")
    return told


def test_a_region_that_refuses_the_documents_holds_nobody_up_for_longer_than_a_step() -> None:
    world = adopting()
    assert refuse(world, 2) == []
    driver = world.fleet.rollouts.driver
    assert driver is not None
    assert driver.waits == "documents are not in force yet in b (revision r2 is refused: no such agent)"
    turns = refuse(world, 8)
    assert [turn.after for turn in turns] == ["reverting", "aborted"]
    assert turns[-1].why == "not in force after 5 s in b (revision r2 is refused: no such agent)"
    assert last_plan(world).documents == BEFORE.documents and last_plan(world).trial is None
    assert not any(isinstance(e, Refused) for e in world.do(Apply("ops", replace(BEFORE, revision="r9"))))


def test_a_rollback_that_a_region_refuses_goes_on_until_other_documents_are_applied() -> None:
    world = adopting(is_back=True)
    assert isinstance(world.do(Apply("ops", replace(BEFORE, revision="r9")))[0], Refused)
    assert refuse(world, 8) == []
    trial = last_plan(world).trial
    assert trial is not None and trial.stages == {"a": Stage(100), "b": Stage(100)}
    # Another rollout waits for its end; documents that the region takes are its end.
    assert isinstance(world.do(ROLL)[0], Refused)
    effects = world.do(Apply("eve", replace(BEFORE, revision="r9")))
    assert [(turn.after, turn.why) for turn in audits(effects, "rollout")] == [("aborted", "replaced by eve")]
    (plan,) = plans(effects)
    assert (plan.revision, plan.trial, world.fleet.facts.rollout) == ("r9", None, "")


def test_a_backup_brings_no_rollout_back() -> None:
    world = begun()
    facts = world.fleet.facts
    world.do(Restore("ops", replace(facts, epoch=9), BEFORE))
    assert world.fleet.rollouts.running is None and world.fleet.facts.rollout == ""


def test_drift_says_who_differs_and_in_what() -> None:
    world = begun()
    other = target(release="x" * 64)
    world.report("a", replace(state("a", "healthy", "", other), revision="r1"))
    world.report("b", replace(state("b"), revision="r0"))
    world.do(Tick())
    assert drift_of(world.fleet) == [
        {"region": "a", "agent": "chat", "has": "x" * 64, "expected": OLD, "differs": "templates or routes"},
        {"region": "b", "agent": "", "has": "r0", "expected": "r1", "differs": "documents"},
    ]
    foreign = replace(other, engine_digest="f" * 64)
    world.report("a", replace(state("a", "healthy", "", foreign), revision="r1"))
    assert drift_of(world.fleet)[0]["differs"] == "the engine"
