"""The coordinator's state machine: scripts of events with the effects they have, on a clock that is an argument."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.fleet import MOST_AHEAD, Fleet
from serve_app.core.fleet_events import (
    Apply,
    Audit,
    CloseLink,
    Drain,
    Effect,
    Event,
    Facts,
    KnownRegion,
    LinkClosed,
    LinkOpened,
    Persist,
    Refused,
    Reported,
    Restore,
    SendPlan,
    Tick,
    Wanted,
)
from serve_app.core.fleet_status import status_of
from serve_app.core.nodes import GIB, Needs
from serve_app.core.reports import Node, PeerView, Plan, RegionState, TargetReport
from serve_app.core.snapshots import Health, Load

AB = Wanted((KnownRegion("a"), KnownRegion("b", accepts_spill=False)))
FOUR = Wanted(tuple(KnownRegion(name) for name in "abcd"))
CPU = Needs("chat", ("a", "b"))
NODE = Node("n1", "cloud", "a", cpus=4, memory_bytes=GIB)


def target(health: Health = "healthy", **changes: object) -> TargetReport:
    made = TargetReport("chat", "chat--12345678", "r" * 64, "e" * 64, health, "", 1, 16, 4096, Load(waiting=0))
    return replace(made, **changes)  # type: ignore[arg-type]


def state(region: str, health: Health = "healthy", why: str = "", *targets: TargetReport) -> RegionState:
    return RegionState(region, health, why, targets or (target(),))


class World:
    """A fleet with its time, and what came out of the last event."""

    def __init__(self, wanted: Wanted = AB, facts: Facts | None = None) -> None:
        self.now_s = 1000.0
        self.fleet = Fleet(wanted, facts or Facts(epoch=7), self.now_s)
        self.links: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        self.out: list[Effect] = []

    def do(self, event: Event) -> list[Effect]:
        self.out = self.fleet.handle(event, self.now_s)
        return self.out

    def open(self, *regions: str) -> None:
        for name in regions:
            self.links[name] = self.links.get(name, 0) + 100
            self.seqs[name] = 0
            self.do(LinkOpened(name, self.links[name]))

    def report(self, region: str, told: RegionState | None = None, **more: object) -> list[Effect]:
        self.seqs[region] += 1
        return self.do(Reported(region, self.links[region], self.seqs[region], told, **more))  # type: ignore[arg-type]

    def beat(self, *regions: str, seconds: float = 1.0) -> list[Effect]:
        """Time passes, these regions report without news, and the coordinator ticks, once in each heartbeat."""
        effects: list[Effect] = []
        while seconds > 1e-6:
            step_s = min(1.0, seconds)
            self.now_s, seconds = self.now_s + step_s, seconds - step_s
            for name in regions:
                self.report(name)
            effects += self.do(Tick())
        self.out = effects
        return effects

    def phase(self, region: str) -> tuple[str, str]:
        shown = self.fleet.members[region].shown
        return shown.phase, shown.why


def up(wanted: Wanted = AB, facts: Facts | None = None) -> World:
    """A world whose regions all reported, with the first plan sent."""
    world = World(wanted, facts)
    for region in wanted.regions:
        world.open(region.name)
        world.report(region.name, state(region.name))
    world.do(Tick())
    return world


def plans(effects: list[Effect]) -> list[Plan]:
    return [e.plan for e in effects if isinstance(e, SendPlan)]


def audits(effects: list[Effect], what: str) -> list[Audit]:
    return [e for e in effects if isinstance(e, Audit) and e.what == what]


# ---- start ----


def test_no_plan_before_every_known_region_reported() -> None:
    world = World()
    world.open("a")
    world.report("a", state("a"))
    assert plans(world.do(Tick())) == [] and not world.fleet.sending
    world.open("b")
    world.report("b", state("b"))
    assert audits(world.out, "plans") == [Audit("coordinator", "plans", "", "held", "sent", "all regions reported")]
    (plan,) = plans(world.do(Tick()))
    assert plan.order == (7, 1)
    assert [(r.name, r.phase, r.accepts_spill) for r in plan.regions] == [("a", "ready", True), ("b", "ready", False)]


def test_a_region_that_never_comes_holds_plans_for_three_heartbeats_and_stays_joining() -> None:
    world = World()
    world.open("a")
    world.report("a", state("a"))
    assert plans(world.beat("a", seconds=2.9)) == []
    (plan,) = plans(world.beat("a", seconds=0.1))
    assert [r.phase for r in plan.regions] == ["ready", "joining"]
    for _ in range(5):
        world.beat("a")
    assert world.phase("b") == ("joining", "has not reported since the coordinator began")


def test_nothing_new_is_no_new_plan() -> None:
    world = up()
    assert world.beat("a", "b") == []
    busy = state("a", "healthy", "", target(load=Load(waiting=9), why="9 wait"))
    assert world.report("a", replace(busy, spilled_rps={"chat": 2.0})) == []
    assert world.do(Tick()) == []
    assert status_of(world.fleet, world.now_s)["regions"][0]["targets"][0]["load"]["waiting"] == 9


def test_what_changed_in_one_tick_is_one_plan_without_load() -> None:
    world = up()
    world.report("a", state("a", "healthy", "", target(replicas=2)))
    world.report("b", state("b", "healthy", "", target(replicas=3)))
    (plan,) = plans(world.do(Tick()))
    assert plan.generation == 2
    assert [r.state.targets[0].replicas for r in plan.regions if r.state] == [2, 3]
    assert all(r.state and r.state.targets[0].load == Load() for r in plan.regions)


# ---- health ----


@pytest.mark.parametrize(
    ("health", "phase"),
    [("healthy", "ready"), ("slow", "slow"), ("probing", "slow"), ("stale", "slow"), ("ejected", "failed")],
)
def test_a_region_is_what_it_says_of_itself(health: Health, phase: str) -> None:
    world = up()
    world.report("a", state("a", health, "its own words"))
    assert world.fleet.members["a"].shown.phase == phase


def test_a_region_that_fails_by_its_own_words_is_not_taken_back_by_anybody_else() -> None:
    world = up(FOUR)
    world.report("a", state("a", "ejected", "no engine makes tokens"))
    assert audits(world.out, "phase") == [
        Audit("coordinator", "phase", "a", "ready", "failed", "no engine makes tokens")
    ]
    for _ in range(5):
        world.now_s += 1
        for name in "bcd":
            world.report(name, peers=(PeerView("a", 0.1),))
        world.report("a")
        world.do(Tick())
    assert world.phase("a") == ("failed", "no engine makes tokens")
    # Who is taken out by an operator and put back meanwhile still fails.
    world.do(Drain("ops", "a"))
    world.do(Drain("ops", "a", back=True))
    assert world.phase("a")[0] == "failed"


def test_three_missed_heartbeats_are_lost_and_close_the_half_open_link() -> None:
    world = up()
    for _ in range(3):
        assert world.beat("b") == []
    effects = world.beat("b", seconds=0.1)
    assert world.phase("a") == ("lost", "no report for 3 heartbeats")
    assert [e for e in effects if isinstance(e, CloseLink)] == [CloseLink(100, "silent", "a says nothing on it")]
    assert [r.phase for r in plans(effects)[0].regions] == ["lost", "ready"]
    # What the old link still delivers is no sign of life; a new one is.
    world.report("a", state("a"))
    assert world.phase("a")[0] == "lost"
    world.open("a")
    world.report("a", state("a"))
    assert world.phase("a") == ("ready", "")


def test_a_closed_link_is_suffered_for_as_long_as_a_silent_one() -> None:
    world = up()
    world.do(LinkClosed("a", 100, "reset"))
    assert audits(world.out, "link") == [Audit("a", "link", "a", "open", "closed", "reset")]
    world.beat("b", seconds=3.0)
    assert world.phase("a")[0] == "ready"
    world.beat("b", seconds=0.1)
    assert world.phase("a")[0] == "lost"


def test_a_target_that_turns_leaves_a_line_and_its_load_none() -> None:
    world = up()
    doc = target(agent="doc")
    world.report("a", state("a", "healthy", "", target(), doc))
    assert audits(world.out, "targets") == []
    world.report("a", state("a", "healthy", "", target(load=Load(waiting=9)), replace(doc, why="9 wait", replicas=2)))
    assert audits(world.out, "targets") == []
    world.report("a", state("a", "slow", "", target("ejected", why="no token"), replace(doc, health="slow")))
    assert audits(world.out, "targets") == [
        Audit("a", "targets", "a", "chat healthy, doc healthy", "chat ejected, doc slow", "no token")
    ]
    world.report("a", state("a", "slow", "", target("ejected", why="still none"), replace(doc, health="slow")))
    assert audits(world.out, "targets") == []


def test_a_revision_leaves_a_line_when_a_region_has_it_and_when_it_refuses_it() -> None:
    world = up()
    world.report("a", replace(state("a"), revision="r1"))
    assert audits(world.out, "revision") == [Audit("a", "revision", "a", "", "r1")]
    refused = replace(state("a", "healthy", "revision r2 is refused: out of memory"), revision="r1", refused="r2")
    for lines in ([Audit("a", "revision", "a", "r1", "r2 refused", refused.why)], []):
        world.report("a", refused)
        assert audits(world.out, "revision") == lines
    region = status_of(world.fleet, world.now_s)["regions"][0]
    assert (region["revision"], region["refused"], region["why"]) == ("r1", "r2", refused.why)
    world.report("a", replace(state("a"), revision="r3"))
    assert audits(world.out, "revision") == [Audit("a", "revision", "a", "r1", "r3")]


def test_a_thousand_targets_that_turn_are_one_short_line() -> None:
    world = up()
    many = [target(agent=f"agent-{n:04}") for n in range(1000)]
    world.report("a", state("a", "healthy", "", *many))
    world.report("a", state("a", "ejected", "", *(replace(t, health="ejected", why=f"{t.agent} x") for t in many)))
    (line,) = audits(world.out, "targets")
    assert line.after.startswith("agent-0000 ejected, ") and line.after.endswith("and 995 more")
    assert len(line.before) + len(line.after) + len(line.why) < 500


def test_drift_leaves_a_line_when_it_begins_and_when_it_ends() -> None:
    world = up()
    world.do(Apply("ops", replace(AB, revision="r1", expected={("a", "chat"): "x" * 64})))
    assert audits(world.out, "drift") == []
    told = replace(state("a"), revision="r1")
    world.report("a", told)
    assert audits(world.out, "drift") == [
        Audit("a", "drift", "a", "", "chat", "chat serves rrrrrrrrrrrr, the plan says xxxxxxxxxxxx")
    ]
    world.report("a", replace(told, targets=(target(replicas=2),)))
    assert audits(world.out, "drift") == []
    world.report("a", replace(told, targets=(target(release="x" * 64),)))
    assert audits(world.out, "drift") == [Audit("a", "drift", "a", "chat", "")]


def test_who_gives_way_and_who_lacks_room_leave_a_line_and_are_in_the_plan() -> None:
    world = up()
    world.report("a", replace(state("a", "healthy", "", target(missing=1)), lowered={"doc": "at most 1, for chat"}))
    assert audits(world.out, "preempt") == [Audit("a", "preempt", "a", "", "doc at most 1, for chat")]
    assert audits(world.out, "room") == [Audit("a", "room", "a", "chat lacks 0", "chat lacks 1")]
    world.beat("a", "b")
    planned = next(r.state for r in world.fleet.plan().regions if r.name == "a")
    assert planned is not None
    assert (planned.targets[0].missing, planned.lowered) == (1, {"doc": "at most 1, for chat"})
    generation = world.fleet.generation
    world.report("a", replace(state("a", "healthy", "", target(missing=1)), lowered={"doc": "at most 1, for chat"}))
    assert audits(world.out, "preempt") == [] and audits(world.out, "room") == []
    world.beat("a", "b")
    assert world.fleet.generation == generation
    world.report("a", state("a"))
    assert audits(world.out, "preempt") == [Audit("a", "preempt", "a", "doc at most 1, for chat", "")]
    assert audits(world.out, "room") == [Audit("a", "room", "a", "chat lacks 1", "chat lacks 0")]
    world.beat("a", "b")
    assert world.fleet.generation == generation + 1


# ---- replays and borrowed links ----


def test_older_and_replayed_messages_are_no_news() -> None:
    world = up()
    world.report("a", state("a", "slow", "busy"))
    before = status_of(world.fleet, world.now_s)
    for seq in (2, 1, 0):
        assert world.do(Reported("a", 100, seq, state("a"))) == []
    assert status_of(world.fleet, world.now_s) == before
    for _ in range(4):
        world.now_s += 0.8
        world.do(Reported("a", 100, 2))
        world.do(Tick())
    assert world.phase("a")[0] == "lost"


def test_a_coordinator_that_stood_still_has_lost_nobody() -> None:
    world = up()
    world.now_s += 30.0
    assert world.do(Tick()) == []
    # The reports that waited are read; a region that is gone all the same is lost as soon as any other.
    for _ in range(2):
        assert world.beat("b") == []
    world.beat("b", seconds=0.5)
    assert (world.phase("a")[0], world.phase("b")[0]) == ("lost", "ready")


def test_a_coordinator_that_stood_still_makes_no_plan_from_half_the_reports() -> None:
    world = World()
    world.open("a")
    world.report("a", state("a"))
    world.now_s += 30.0
    assert plans(world.do(Tick())) == [] and not world.fleet.sending
    world.open("b")
    world.report("b", state("b"))
    (plan,) = plans(world.do(Tick()))
    assert [r.phase for r in plan.regions] == ["ready", "ready"]


def test_the_newest_link_of_a_region_counts() -> None:
    world = up()
    world.open("a")
    assert [e for e in world.out if isinstance(e, CloseLink)] == [CloseLink(100, "replaced", "a dialled again")]
    assert world.do(Reported("a", 100, 99, state("a", "ejected"))) == []
    assert world.do(LinkClosed("a", 100)) == []
    assert world.fleet.members["a"].link == 200


def test_a_region_that_no_document_names_is_refused() -> None:
    world = up()
    assert world.do(LinkOpened("x", 9)) == [
        CloseLink(9, "unknown", "x is no region here; allowed: a, b"),
        Audit("x", "link", "x", "", "refused", "is not in the federation"),
    ]
    assert world.do(Reported("x", 9, 1, state("x"))) == []


def test_a_later_epoch_that_a_region_has_seen_is_passed() -> None:
    world = up()
    world.report("a", seen=(7 + 3600, 5))
    assert Persist(Facts(epoch=3608)) in world.out
    (plan,) = plans(world.do(Tick()))
    assert plan.order == (3608, 2)
    world.report("a", seen=(3608 + MOST_AHEAD + 1, 0))
    world.report("b", seen=(12, 10**9))
    assert world.fleet.facts.epoch == 3608


# ---- peers ----


def watch(world: World, by: str, silent_s: float | None, fault: str = "") -> None:
    world.now_s += 1
    for name in "bcd":
        seen_s = silent_s if name in by else 0.1
        world.report(name, peers=(PeerView("a", seen_s, fault=fault if name in by else ""),))
    world.report("a")
    world.do(Tick())


def test_a_majority_that_hears_nothing_is_a_partition_and_says_from_whom() -> None:
    world = up(FOUR)
    watch(world, "bc", 1.5)
    assert world.phase("a") == ("ready", "partition: silent to b, c")
    assert audits(world.out, "peers") == [
        Audit("coordinator", "peers", "a", "", "silent to b, c", "partition: silent to b, c")
    ]
    assert len(plans(world.out)) == 1
    watch(world, "bc", 9.0)
    assert world.out == []
    watch(world, "", None)
    assert world.phase("a") == ("ready", "")


def test_a_minority_is_not_a_partition() -> None:
    world = up(FOUR)
    watch(world, "b", 60.0)
    assert world.phase("a") == ("ready", "")


def test_a_peer_never_reached_counts_only_with_a_fault() -> None:
    world = up(FOUR)
    watch(world, "bcd", None)
    assert world.phase("a")[1] == ""
    watch(world, "bcd", None, "connection refused")
    assert world.phase("a")[1] == "partition: silent to b, c, d"


@pytest.mark.parametrize(("silent_s", "said"), [(5.0, "silent to b, c, d"), (0.1, "heard by b, c, d")])
def test_peers_confirm_a_loss_or_say_that_only_the_link_is_cut(silent_s: float, said: str) -> None:
    world = up(FOUR)
    for _ in range(4):
        world.now_s += 1
        for name in "bcd":
            world.report(name, peers=(PeerView("a", silent_s),))
        world.do(Tick())
    assert world.phase("a") == ("lost", f"no report for 3 heartbeats; {said}")


# ---- operators ----


def test_drained_stays_drained_through_everything_until_undrained() -> None:
    world = up()
    effects = world.do(Drain("ops", "a"))
    assert Persist(Facts(7, {"a": "ops"})) in effects
    assert audits(effects, "phase") == [Audit("ops", "phase", "a", "ready", "drained", "drained by ops")]
    (plan,) = plans(effects)
    assert plan.regions[0].phase == "drained" and plan.regions[0].drained
    world.do(Drain("other", "a"))
    world.beat("b", seconds=9)
    world.open("a")
    world.report("a", state("a"))
    assert world.phase("a") == ("drained", "drained by ops")
    effects = world.do(Drain("ops", "a", back=True))
    assert audits(effects, "phase") == [Audit("ops", "phase", "a", "drained", "ready")]
    assert not world.fleet.members["a"].shown.drained and world.fleet.facts.drains == {}


def test_a_drain_outlives_the_coordinator() -> None:
    world = World(AB, Facts(8, {"a": "ops"}))
    assert world.phase("a") == ("drained", "drained by ops")
    world.open("a", "b")
    world.report("a", state("a"))
    assert world.phase("a") == ("drained", "drained by ops")


def test_a_drained_region_that_falls_silent_leaves_no_half_open_link() -> None:
    world = up()
    world.do(Drain("ops", "a"))
    effects = world.beat("b", seconds=3.1)
    assert CloseLink(100, "silent", "a says nothing on it") in effects


def test_draining_an_unknown_region_names_those_there_are() -> None:
    said = "region: 'x' is not in the federation; allowed: a, b"
    assert up().do(Drain("ops", "x")) == [Refused((said,))]


def test_a_policy_waits_for_a_ready_node_and_then_keeps_its_place() -> None:
    world = up()
    wanted = replace(AB, needs=(CPU,), revision="r1", documents="[]")
    refused = [Refused(("chat: node: there is no Ready node in a, b",))]
    assert world.do(Apply("ops", wanted)) == refused
    world.report("a", nodes=(NODE,))
    assert audits(world.out, "nodes") == [Audit("a", "nodes", "a", "0 Ready", "1 Ready")]
    assert world.do(Apply("ops", wanted, dry_run=True)) == []
    assert world.fleet.wanted.revision == ""
    effects = world.do(Apply("ops", wanted))
    assert Persist(Facts(7, {}, "r1", "[]")) in effects
    assert Audit("ops", "apply", "", "", "r1") in effects
    assert plans(effects)[0].revision == "r1" and plans(effects)[0].documents == "[]"
    assert world.do(Apply("ops", wanted)) == []
    # The node goes; the policy was accepted, another change passes, a new policy does not.
    world.report("a", nodes=(replace(NODE, ready=False),))
    assert world.do(Apply("ops", replace(wanted, needs=(CPU, replace(CPU, agent="doc"))))) == [
        Refused(("doc: node: there is no Ready node in a, b",))
    ]
    assert plans(world.do(Apply("ops", replace(wanted, revision="r2"))))[0].revision == "r2"


def test_a_policy_of_the_start_is_held_until_a_ready_node_can_carry_it() -> None:
    gpu = Needs("big", ("b",), gpus=1, vram_per_gpu_bytes=40 * GIB)
    world = up(replace(AB, needs=(CPU, gpu)))
    none = "node: there is no Ready node in"
    told = [Audit("coordinator", "policy", "", "", "held", why) for why in (f"chat: {none} a, b", f"big: {none} b")]
    assert audits(world.out, "policy") == told
    assert audits(world.beat("a", "b", seconds=3.0), "policy") == []
    assert status_of(world.fleet, world.now_s)["held"] == [
        {"agent": "chat", "unmet": [f"chat: {none} a, b"]},
        {"agent": "big", "unmet": [f"big: {none} b"]},
    ]
    world.report("a", nodes=(NODE,))
    world.beat("a", "b", seconds=3.0)
    assert audits(world.out, "policy") == [
        Audit("coordinator", "policy", "", "held", "accepted", "a Ready node can carry chat")
    ]
    # Once accepted it keeps its place; what is held is nothing that an apply may rely on.
    world.report("a", nodes=())
    world.beat("a", "b")
    assert [policy["agent"] for policy in status_of(world.fleet, world.now_s)["held"]] == ["big"]
    refused = [Refused((f"big: {none} b",))]
    assert world.do(Apply("ops", replace(AB, needs=(CPU, gpu), revision="r1", documents="[]"))) == refused
    world.do(Apply("ops", replace(AB, needs=(CPU,), revision="r1", documents="[]")))
    assert world.fleet.held == () and world.fleet.wanted.revision == "r1"


def test_what_nodes_carry_when_all_have_reported_was_never_held() -> None:
    world = World(replace(AB, needs=(CPU,)))
    world.open("a", "b")
    assert audits(world.beat("a"), "policy") == []
    world.report("a", nodes=(NODE,))
    said = audits(world.beat("a", "b", seconds=3.0), "policy")
    assert said == [Audit("coordinator", "policy", "", "held", "accepted", "a Ready node can carry chat")]


def test_what_was_applied_before_a_start_is_not_held() -> None:
    assert World(replace(AB, needs=(CPU,), revision="r1", documents="[]")).fleet.held == ()


def test_nodes_of_a_silent_region_carry_nothing() -> None:
    world = up()
    world.report("a", nodes=(NODE,))
    world.beat("b", seconds=3.1)
    assert isinstance(world.do(Apply("ops", replace(AB, needs=(CPU,))))[0], Refused)


def test_regions_come_and_go_with_documents() -> None:
    world = up()
    world.do(Drain("ops", "b"))
    effects = world.do(Apply("ops", Wanted((KnownRegion("c"), KnownRegion("a")), revision="r1")))
    assert CloseLink(100, "removed", "b is no longer in the federation") in effects
    assert [(r.name, r.phase) for r in plans(effects)[0].regions] == [("c", "joining"), ("a", "ready")]
    assert world.fleet.facts.drains == {}


def test_a_restore_brings_drains_documents_and_a_later_epoch() -> None:
    world = up()
    facts = Facts(500, {"b": "ops"}, "r9", "[9]")
    effects = world.do(Restore("ops", facts, replace(AB, revision="r9", documents="[9]")))
    assert Persist(replace(facts, epoch=501)) in effects
    (plan,) = plans(effects)
    assert plan.epoch == 501 and plan.revision == "r9" and plan.regions[1].drained
    assert world.do(Restore("ops", replace(facts, drains={"x": "ops"}), AB)) == [
        Refused(("drains: 'x' is not in the federation",))
    ]


def test_status_has_no_claim_where_there_is_no_data() -> None:
    world = World()
    found = status_of(world.fleet, world.now_s + 2)
    assert (found["epoch"], found["generation"], found["sending"], found["began_s_ago"]) == (7, 0, False, 2.0)
    first = found["regions"][0]
    assert (first["name"], first["heard_s_ago"], first["health"], first["targets"]) == ("a", None, None, [])


def test_a_region_has_drifted_only_once_it_says_it_runs_the_revision() -> None:
    world = up()
    releases = {("a", "chat"): "x" * 64, ("b", "chat"): "r" * 64}
    effects = world.do(Apply("ops", replace(AB, revision="r1", expected=releases)))
    assert plans(effects)[0].expected == {}
    for name in "ab":
        world.report(name, replace(state(name), revision="r1"))
    (plan,) = plans(world.do(Tick()))
    assert plan.expected == releases
    regions = status_of(world.fleet, world.now_s)["regions"]
    assert [(r["targets"][0]["expected"], r["targets"][0]["drifted"]) for r in regions] == [
        ("x" * 64, True),
        ("r" * 64, False),
    ]
