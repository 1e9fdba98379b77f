"""Who gives way to whom, when, and when it has its replicas again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.preempt import PENDING_S, RESTORE_S, Ceiling, Change, Decision, Engine, Lowered, Memory, decide

SLOT = {"gpu_slot": 1.0}


def engine(app: str, priority: int, placed: int = 0, pending: int = 0, **changes: Any) -> Engine:
    made = Engine(
        app=app, priority=priority, min_replicas=1, max_replicas=4, needs=SLOT, placed=placed, pending=pending
    )
    return replace(made, **changes)


CHAT = engine("chat", 100, placed=1, pending=1)
DOC = engine("doc", 50, placed=3)
CODER = engine("coder", 10, placed=2)


def pending(*engines: Engine, free: float = 0.0, memory: Memory | None = None) -> Decision:
    """The decision when the same has been seen for as long as a replica has to be pending."""
    first = decide(engines, {"gpu_slot": free}, memory or Memory(), 100.0)
    assert first.change is None and first.short == {}
    early = decide(engines, {"gpu_slot": free}, first.memory, 100.0 + PENDING_S - 0.1)
    assert early.change is None and early.short == {}
    return decide(engines, {"gpu_slot": free}, early.memory, 100.0 + PENDING_S)


@pytest.mark.parametrize(
    ("engines", "change"),
    [
        ((CHAT, DOC), Change("doc", 3, 2, "chat")),
        ((CHAT, DOC, CODER), Change("coder", 2, 1, "chat")),
        # At its minimum it has nothing to give, and the next one does.
        ((CHAT, DOC, replace(CODER, placed=1)), Change("doc", 3, 2, "chat")),
        ((CHAT, DOC, replace(CODER, min_replicas=2)), Change("doc", 3, 2, "chat")),
        # Serve takes no maximum of 0.
        ((CHAT, DOC, replace(CODER, placed=1, min_replicas=0)), Change("doc", 3, 2, "chat")),
        # Of two alike the one that is further above its minimum, then by name.
        ((CHAT, DOC, engine("able", 50, placed=2)), Change("doc", 3, 2, "chat")),
        ((CHAT, DOC, engine("able", 50, placed=3)), Change("able", 3, 2, "chat")),
        # The most important pending replica comes first.
        ((CHAT, DOC, engine("vip", 200, pending=1)), Change("doc", 3, 2, "vip")),
        # Its own pending replicas go with the maximum, a running one too.
        ((CHAT, replace(DOC, pending=1)), Change("doc", 3, 2, "chat")),
    ],
)
def test_the_least_important_above_its_minimum_gives_way(engines: tuple[Engine, ...], change: Change) -> None:
    decision = pending(*engines)
    assert decision.change == change
    assert decision.memory.ceilings == {change.app: Ceiling(change.after, str(change.cause))}


@pytest.mark.parametrize("priority", [100, 101])
def test_nobody_as_important_gives_way_and_the_agent_is_short(priority: int) -> None:
    decision = pending(CHAT, replace(DOC, priority=priority))
    assert (decision.change, decision.short) == (None, {"chat": 1})


def test_an_agent_is_short_of_as_many_as_were_pending_for_long_enough() -> None:
    first = decide((CHAT,), {}, Memory(), 100.0)
    more = decide((replace(CHAT, pending=3),), {}, first.memory, 101.0)
    later = decide((replace(CHAT, pending=3),), {}, more.memory, 102.0)
    assert (more.short, later.short) == ({}, {"chat": 1})
    assert decide((replace(CHAT, pending=3),), {}, later.memory, 103.0).short == {"chat": 3}
    assert decide((replace(CHAT, pending=0),), {}, later.memory, 103.0).short == {}


def test_a_replica_that_finds_room_only_starts() -> None:
    assert pending(CHAT, DOC, free=1.0).change is None
    two = replace(CHAT, pending=2)
    assert pending(two, DOC, free=1.0).change == Change("doc", 3, 2, "chat")


def test_what_was_pending_for_a_moment_begins_anew() -> None:
    first = decide((CHAT, DOC), {}, Memory(), 100.0)
    placed = decide((replace(CHAT, pending=0), DOC), {}, first.memory, 101.0)
    again = decide((CHAT, DOC), {}, placed.memory, 102.0)
    assert decide((CHAT, DOC), {}, again.memory, 103.9).change is None
    assert decide((CHAT, DOC), {}, again.memory, 104.0).change is not None


def test_one_at_a_time_and_nobody_more_while_the_first_ends_its_calls() -> None:
    two = replace(CHAT, pending=2)
    first = pending(two, DOC)
    assert first.change == Change("doc", 3, 2, "chat")
    # The config is put, Serve has not acted; then it has; then the replica is gone, and its room is there.
    second = decide((two, DOC), {}, first.memory, 102.1)
    assert second.change == Change("doc", 2, 1, "chat")
    for placed, ending in ((3, 0.0), (1, 2.0), (2, 1.0)):
        told = (two, replace(DOC, placed=placed))
        decision = decide(told, {}, second.memory, 103.0, ending={"gpu_slot": ending})
        assert (decision.change, decision.short) == (None, {})
    told = (replace(CHAT, placed=2, pending=1), replace(DOC, placed=1))
    gone = decide(told, {}, second.memory, 110.0, ending=SLOT)
    assert (gone.change, gone.memory.ceilings) == (None, {"doc": Ceiling(1, "chat")})


def test_who_takes_the_room_that_was_made_for_somebody_else_gives_way_next() -> None:
    first = pending(CHAT, replace(DOC, placed=2), engine("new", 10, placed=1, pending=1))
    assert first.change == Change("doc", 2, 1, "chat")
    ends = (CHAT, replace(DOC, placed=1), engine("new", 10, placed=1, pending=1))
    covered = decide(ends, {}, first.memory, 103.0, ending=SLOT)
    taken = (CHAT, replace(DOC, placed=1), engine("new", 10, placed=2))
    decision = decide(taken, {}, covered.memory, 110.0)
    assert decision.change is None
    decision = decide(taken, {}, decision.memory, 112.0)
    assert decision.change == Change("new", 2, 1, "chat")
    assert decision.memory.ceilings == {"doc": Ceiling(1, "chat"), "new": Ceiling(1, "chat")}


def test_several_give_way_only_where_together_they_make_the_room() -> None:
    large = engine("large", 100, pending=1, needs={"GPU": 2.0, "CPU": 1.0})
    one = engine("one", 20, placed=2, needs={"GPU": 1.0, "CPU": 1.0})
    other = engine("other", 10, placed=2, needs={"GPU": 1.0, "CPU": 1.0})
    assert pending(large, one).short == {"large": 1}
    first = pending(large, one, other)
    assert first.change == Change("other", 2, 1, "large")
    assert decide((large, one, other), {}, first.memory, 103.0).change == Change("one", 2, 1, "large")


def test_nobody_gives_way_without_what_is_lacking() -> None:
    gpu = engine("gpu", 100, pending=1, needs={"GPU": 1.0, "CPU": 1.0})
    cpu = engine("cpu", 10, placed=3, needs={"CPU": 1.0})
    both = engine("both", 50, placed=2, needs={"GPU": 1.0, "CPU": 1.0})
    assert pending(gpu, cpu).short == {"gpu": 1}
    # Of a less important one that brings only what a more important one has to bring anyway nothing is taken.
    assert pending(gpu, cpu, both).change == Change("both", 2, 1, "gpu")


def test_a_share_of_a_gpu_is_enough_when_that_is_lacking() -> None:
    half = engine("half", 100, pending=1, needs={"GPU": 0.5})
    thirds = engine("thirds", 10, placed=3, needs={"GPU": 0.3})
    first = decide((half, thirds), {"GPU": 0.1}, Memory(), 100.0)
    assert decide((half, thirds), {"GPU": 0.1}, first.memory, 102.0).change == Change("thirds", 3, 1, "half")


OLD, NEW = engine("chat--1", 100, placed=2), engine("chat--2", 100, pending=2)


def test_nobody_gives_way_to_an_engine_only_because_the_one_that_it_follows_is_still_there() -> None:
    # Both have room when the old one is gone. That they have none before is told.
    decision = pending(OLD, NEW, DOC)
    assert (decision.change, decision.short) == (None, {"chat--2": 2})
    # Nor is anybody held for it who gave way before.
    given = Memory({"doc": Lowered(Ceiling(2, "chat--1"), 100.0)})
    calm = (OLD, NEW, replace(DOC, placed=2))
    assert decide(calm, {}, given, 100.0 + RESTORE_S).change == Change("doc", 2, 4, None)
    # While the old one still serves, the new one is called and wants more, its room comes too.
    assert pending(replace(OLD, placed=1), replace(NEW, placed=1, pending=1), DOC).change is None


def test_an_engine_that_lacks_room_with_the_one_before_it_gone_gets_it_as_any_other() -> None:
    assert pending(OLD, replace(NEW, pending=3), DOC).change == Change("doc", 3, 2, "chat--2")
    larger = replace(NEW, needs={"gpu_slot": 3.0})
    decision = pending(OLD, replace(larger, pending=1), DOC)
    assert decision.change == Change("doc", 3, 2, "chat--2")
    # An engine of another agent makes no room by being there.
    assert pending(replace(OLD, app="other--1"), replace(NEW, pending=1), DOC).change == Change("doc", 3, 2, "chat--2")


def test_of_those_that_wait_beside_another_engine_only_the_others_have_to_wait_long_enough() -> None:
    first = decide((OLD, NEW, DOC), {}, Memory(), 100.0)
    more = (OLD, replace(NEW, pending=3), DOC)
    third = decide(more, {}, first.memory, 101.0)
    assert decide(more, {}, third.memory, 102.0).change is None
    assert decide(more, {}, third.memory, 103.0).change == Change("doc", 3, 2, "chat--2")


CALM = (replace(CHAT, placed=2, pending=0), replace(DOC, placed=2))
GIVEN = Memory({"doc": Lowered(Ceiling(2, "chat"), 100.0)})


def test_replicas_are_restored_five_minutes_after_the_need() -> None:
    assert decide(CALM, {}, GIVEN, 100.0 + RESTORE_S - 0.1).change is None
    decision = decide(CALM, {}, GIVEN, 100.0 + RESTORE_S)
    assert decision.change == Change("doc", 2, 4, None)
    assert decision.memory.lowered == {}


def test_the_need_goes_on_for_as_long_as_somebody_more_important_lacks_what_was_given() -> None:
    waits = (CHAT, replace(DOC, placed=2))
    still = decide(waits, {}, GIVEN, 390.0, ending=SLOT)
    assert decide(CALM, {}, still.memory, 400.0).change is None
    # Neither who is less important, nor who lacks something else, needs it.
    others = (engine("small", 10, pending=1), engine("gpu", 200, pending=1, needs={"GPU": 1.0}))
    assert decide((*CALM, *others), {"gpu_slot": 0.0}, GIVEN, 400.0).change == Change("doc", 2, 4, None)


def test_the_most_important_is_restored_first_one_at_a_time() -> None:
    memory = Memory({"doc": Lowered(Ceiling(2, "chat"), 100.0), "coder": Lowered(Ceiling(1, "chat"), 100.0)})
    first = decide((*CALM, replace(CODER, placed=1)), {}, memory, 500.0)
    assert first.change == Change("doc", 2, 4, None)
    second = decide((*CALM, replace(CODER, placed=1)), {}, first.memory, 501.0)
    assert second.change == Change("coder", 1, 4, None)


@pytest.mark.parametrize(
    ("told", "ceilings"),
    [
        # Its policy allows no more by itself; its policy wants more than that; it is gone.
        (replace(DOC, placed=2, max_replicas=2), {}),
        (replace(DOC, placed=2, min_replicas=3), {"doc": Ceiling(3, "chat")}),
        (None, {}),
    ],
)
def test_a_policy_that_changes_meanwhile_counts(told: Engine | None, ceilings: dict[str, Ceiling]) -> None:
    engines = (CALM[0],) if told is None else (CALM[0], told)
    decision = decide(engines, {}, GIVEN, 101.0)
    assert (decision.change, decision.memory.ceilings) == (None, ceilings)
