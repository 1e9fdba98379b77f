"""Choice of a target: filters, tiers, scores, and that order never depends on the order of the snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from serve_app.core import pick, scorers
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.core.table import Tenant
from tests.fakes import agent

ANY = Tenant("acme", (), frozenset({"any"}))
WISH = pick.Wish(agent("qwen-chat"), ANY, "en", 10, region="a")


def target(region: str, **changes: object) -> Target:
    made = Target(region, region, "qwen-chat", "app", "abc" + "0" * 61, 1000, 4, frozenset({"sg"}), 1.0, "healthy")
    return replace(made, **changes)  # type: ignore[arg-type]


def choose(*targets: Target, wish: pick.Wish = WISH) -> pick.Choice:
    return pick.choose(Snapshot(1, 1, targets), wish, default_weights())


def test_scores_are_weighted_sums_of_four() -> None:
    load = Load(queue_wait_p95_ms=250.0, waiting=1, running=1, network_ms=100.0)
    (one,) = choose(target("b", load=load)).candidates
    assert one.scores == {"network": 0.4, "queue": 0.5, "headroom": 0.5, "cost": 0.0}
    assert one.score == pytest.approx(0.25 * 0.4 + 0.45 * 0.5 + 0.2 * 0.5)
    assert one.tier == "price 1 USD/h"


def test_no_data_scores_in_the_middle_and_home_is_near() -> None:
    (home,) = choose(target("a")).candidates
    assert home.scores == {"network": 1.0, "queue": 0.5, "headroom": 0.5, "cost": 0.0}
    (away,) = choose(target("b")).candidates
    assert away.scores["network"] == 0.4


def test_a_full_target_has_no_headroom_but_is_not_below_zero() -> None:
    (full,) = choose(target("a", load=Load(0.0, waiting=100, running=4))).candidates
    assert full.scores["headroom"] == 0.0
    (free,) = choose(target("a", gpu_hour_usd=0.0)).candidates
    assert free.scores["cost"] == 1.0


def test_the_limit_itself_counts_as_busy() -> None:
    busy, dear = (
        target("a", load=Load(250.0, waiting=1, running=0)),
        target("b", gpu_hour_usd=9.0, load=Load(249.9, waiting=1, running=0)),
    )
    assert [t.region for t in choose(busy, dear).order] == ["b", "a"]


def test_order_does_not_depend_on_the_snapshots_order() -> None:
    targets = [
        target("a"),
        target("b", load=Load(900.0, waiting=1, running=1)),
        target("c", gpu_hour_usd=0.5),
        target("d"),
    ]
    orders = {tuple(t.region for t in choose(*p).order) for p in permutations(targets)}
    assert orders == {("c", "a", "d", "b")}


def test_a_pin_takes_only_its_release() -> None:
    pinned = replace(WISH, pinned_release="abc")
    choice = choose(target("a"), target("b", release="f" * 64), wish=pinned)
    assert [t.region for t in choice.order] == ["a"]
    assert choice.candidates[1].dropped == "serves release ffffffffffff, not abc"


@pytest.mark.parametrize(
    ("why", "said"), [("", "is ejected"), ("peer silent for 1.2 s", "is ejected: peer silent for 1.2 s")]
)
def test_targets_out_of_service_are_dropped(why: str, said: str) -> None:
    choice = choose(target("a", health="ejected", why=why))
    assert (choice.order, choice.refused) == ((), "no_target")
    assert choice.reason == f"a/qwen-chat@abc00000: {said}"
    assert choice.candidates[0].score is None


@pytest.mark.parametrize("health", ["healthy", "slow", "probing", "unknown", "stale"])
def test_every_other_health_may_answer(health: str) -> None:
    assert len(choose(target("a", health=health)).order) == 1


def test_rte_03_unknown_health_of_another_region_is_not_taken_for_healthy() -> None:
    choice = choose(target("b", health="unknown", why="no beat yet"), target("a", health="unknown"))
    assert [t.region for t in choice.order] == ["a"]
    assert choice.candidates[1].dropped == "is unknown: no beat yet"


def test_rte_10_who_reports_nothing_any_more_is_asked_after_all_others() -> None:
    stale = target("a", health="stale", gpu_hour_usd=0.1, load=Load(0.0, waiting=0, running=0))
    busy = target("b", load=Load(9000.0, waiting=50, running=4))
    choice = choose(stale, busy)
    assert [t.region for t in choice.order] == ["b", "a"]
    assert [c.mark for c in choice.candidates] == ["over limit", "backup"]
    assert [t.region for t in choose(stale, busy, wish=replace(WISH, session="s", kept="a")).order] == ["b", "a"]


@pytest.mark.parametrize(
    ("wait_ms", "short", "order"), [(60.0, False, "ab"), (60.0, True, "ba"), (49.0, True, "ab"), (None, True, "ab")]
)
def test_a_region_without_room_for_its_replicas_is_left_as_soon_as_somebody_waits_there(
    wait_ms: float | None, short: bool, order: str
) -> None:
    here = target("a", short=short, load=Load(wait_ms, waiting=1, running=4))
    there = target("b", gpu_hour_usd=2.0, load=Load(0.0, waiting=0, running=0))
    choice = choose(here, there)
    assert [t.region for t in choice.order] == list(order)
    # Nobody else may take it: it stays.
    assert choose(here, replace(there, accepts_spill=False)).order[0].region == "a"
    assert choose(here, replace(there, load=Load(400.0, waiting=9, running=4))).order[0].region == "a"


def test_rte_33_an_engine_that_starts_here_is_a_backup_while_somebody_is_known_to_be_well() -> None:
    starting, busy = target("a", health="unknown"), target("b", load=Load(9000.0, waiting=50, running=4))
    assert [(c.target.region, c.mark) for c in choose(starting, busy).candidates] == [
        ("b", "over limit"),
        ("a", "backup"),
    ]
    # Nobody else is known to be well: alone, or when the RegionAgent is silent, what is here comes first.
    for others in ((), (target("b", health="stale", gpu_hour_usd=0.1),), (target("b", health="unknown"),)):
        choice = choose(starting, *others)
        assert (choice.order[0].region, choice.candidates[0].mark) == ("a", "")
    # What sleeps at zero is woken by a call.
    sleepy = replace(WISH, agent=replace(WISH.agent, min_replicas=0))
    assert choose(starting, busy, wish=sleepy).order[0].region == "a"


def test_one_call_wakes_an_engine_that_sleeps_and_the_others_go_where_nobody_sleeps() -> None:
    asleep, awake = target("a", health="unknown"), target("b", gpu_hour_usd=2.0)
    sleepy = replace(WISH, agent=replace(WISH.agent, min_replicas=0))
    picture = Snapshot(1, 1, (asleep, awake))
    for waiting, runs, order in ((0, False, ["a", "b"]), (1, False, ["b", "a"]), (1, True, ["a", "b"])):
        seen = replace(picture, targets=(replace(asleep, runs=runs), awake))
        choice = pick.choose(seen, sleepy, default_weights(), in_flight={asleep.id: waiting})
        assert [t.region for t in choice.order] == order
    # Where nobody else is well they wait together.
    alone = pick.choose(Snapshot(1, 1, (asleep,)), sleepy, default_weights(), in_flight={asleep.id: 9})
    assert [t.region for t in alone.order] == ["a"]


def test_rte_10_calls_since_the_report_are_added_to_it() -> None:
    load = Load(0.0, waiting=0, running=2)
    a, b = target("c", load=load), target("d", load=load)
    assert [t.region for t in choose(a, b).order] == ["c", "d"]
    picture = Snapshot(1, 1, (a, b))
    busy = pick.choose(picture, WISH, default_weights(), in_flight={a.id: 1})
    assert [t.region for t in busy.order] == ["d", "c"]
    assert [c.scores["headroom"] for c in busy.candidates] == [0.5, 0.25]
    # Some have ended since: no more than all of it is free.
    ended = pick.choose(picture, WISH, default_weights(), in_flight={b.id: -3})
    assert [c.scores["headroom"] for c in ended.candidates] == [1.0, 0.5]
    told = pick.choose(Snapshot(1, 1, (target("d"),)), WISH, default_weights(), in_flight={b.id: 2})
    assert told.candidates[0].scores["headroom"] == 0.25


def test_rte_10_a_session_does_not_follow_what_one_router_knows() -> None:
    picture = Snapshot(1, 1, tuple(target(r, load=Load(0.0, waiting=0, running=0)) for r in "bcd"))
    wish = replace(WISH, session="acme/s1")
    first = pick.choose(picture, wish, default_weights()).order[0]
    assert pick.choose(picture, wish, default_weights(), in_flight={first.id: 4}).order[0] == first


def test_the_one_that_waits_longest_tells_of_a_queue_that_does_not_move() -> None:
    stuck = target("a", load=Load(queue_wait_p95_ms=5.0, oldest_wait_ms=800.0))
    assert [t.region for t in choose(stuck, target("b", gpu_hour_usd=9.0)).order] == ["b", "a"]


@pytest.mark.parametrize(
    ("load", "first"),
    [
        (Load(900.0, 0.0, waiting=0, running=3), "a"),
        (Load(900.0, 0.0, waiting=1, running=3), "b"),
        (Load(900.0, 0.0, waiting=0, running=4), "b"),
        (Load(900.0, 300.0, waiting=0, running=3), "b"),
        (Load(900.0, 0.0), "b"),
    ],
)
def test_a_queue_that_is_over_is_not_held_against_who_has_room(load: Load, first: str) -> None:
    assert choose(target("a", load=load), target("b", gpu_hour_usd=9.0)).order[0].region == first


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"breaker": "open"}, "its breaker is open"),
        ({"breaker": "probing"}, "its breaker is half-open and the probe is lent to another Router"),
        ({"drifted": True}, "drifted: serves release abc000000000, which its plan does not name"),
        ({"accepts_spill": False}, "its region takes no requests of others"),
        ({"drained": True}, "its region is drained"),
        ({"max_model_len": 10}, "context of 10 tokens is too small for about 10"),
    ],
)
def test_each_filter_has_a_name(changes: dict[str, object], said: str) -> None:
    choice = choose(target("b", **changes), target("c", gpu_hour_usd=9.0))
    assert [t.region for t in choice.order] == ["c"]
    assert choice.candidates[1].dropped == said


def test_a_prompt_that_is_too_long_for_all_goes_where_the_context_is_longest() -> None:
    """The engine counts exactly, and says what does not fit; while a longer context is out for now nobody says so."""
    long = replace(WISH, prompt_tokens=5000)
    small, large = target("a"), target("b", max_model_len=4096, gpu_hour_usd=9.0)
    choice = choose(small, large, wish=long)
    assert [t.region for t in choice.order] == ["b"]
    assert choice.candidates[1].dropped == "context of 1000 tokens is too small for about 5000"
    away = choose(small, target("b", max_model_len=8192, breaker="open"), wish=long)
    assert (away.order, away.refused, [t.region for t in away.away]) == ((), "no_target", ["b"])


def test_a_scorer_is_a_function_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def alphabet(targets: Sequence[Target], scene: scorers.Scene) -> list[float]:
        return [1.0 if t.region == scene.region else float(t.region == "c") for t in targets]

    monkeypatch.setitem(scorers.SCORERS, "alphabet", scorers.Scorer(alphabet, 0.0))
    fleet = Snapshot(1, 1, (target("b"), target("c")))
    assert pick.choose(fleet, WISH, default_weights()).order[0].region == "b"
    weights = {**default_weights(), "queue": 0.05, "alphabet": 0.4}
    first = pick.choose(fleet, WISH, weights).candidates[0]
    assert (first.target.region, first.scores["alphabet"]) == ("c", 1.0)
    assert first.score == pytest.approx(0.25 * 0.4 + 0.05 * 0.5 + 0.2 * 0.5 + 0.4)


@pytest.mark.parametrize("network_ms", [0.1, 1.0, 20.0])
def test_a_region_with_room_keeps_what_is_its_own_however_near_another_is(network_ms: float) -> None:
    """A few more run here than there."""
    here = target("b", slots=16, load=free(3))
    there = target("a", slots=16, load=replace(free(0), network_ms=network_ms))
    assert shares(here, there, region="b") == {"b": 1.0, "a": 0.0}
    # One that is nearly full hands on.
    assert shares(replace(here, load=free(15)), there, region="b")["a"] > 0.5


def test_a_region_uses_itself_where_it_takes_no_others_and_while_it_is_drained() -> None:
    choice = choose(target("a", accepts_spill=False))
    assert (len(choice.order), choice.candidates[0].mark) == (1, "")
    drained = choose(target("a", drained=True), target("b", gpu_hour_usd=9.0))
    assert [t.region for t in drained.order] == ["b", "a"]


def test_rte_30_what_was_handed_on_is_not_handed_on_again() -> None:
    here, there = target("a", load=Load(9000.0, waiting=9, running=4)), target("b")
    spilled = choose(here, there, wish=replace(WISH, hops=1))
    assert [t.region for t in spilled.order] == ["a"]
    assert spilled.candidates[1].dropped == "another region has handed the request on already"
    nobody = choose(there, wish=replace(WISH, hops=1))
    assert (nobody.order, nobody.refused) == ((), "no_target")


def test_rte_30_two_healthy_regions_keep_what_is_theirs() -> None:
    """Each prefers itself for its language; each spills only while it is busy itself."""
    calm, busy = Load(10.0, waiting=0, running=3), Load(400.0, waiting=8, running=4)
    loving = agent("qwen-chat", language_affinity={"ja": "a", "ko": "b"})
    for language, home, other in (("ja", "a", "b"), ("ko", "b", "a")):
        wish = replace(WISH, agent=loving, language=language, region=home)
        assert {choose(target("a", load=calm), target("b", load=calm), wish=wish).order[0].region} == {home}
        spilled = choose(target(home, load=busy), target(other, load=calm), wish=wish)
        assert spilled.order[0].region == other
        assert spilled.preferred == {home}


def test_rte_23_what_this_router_found_out_holds_at_once() -> None:
    a, b = target("a"), target("b", gpu_hour_usd=9.0)
    choice = pick.choose(Snapshot(1, 1, (a, b)), WISH, default_weights(), blocked={a.id})
    assert [t.region for t in choice.order] == ["b"]
    assert choice.candidates[1].dropped == "its breaker is open in this Router"


def test_who_does_not_tell_its_queue_is_not_taken_for_the_least_loaded() -> None:
    wish = replace(WISH, session="acme/s1", kept="b")
    untold, busy = target("b", load=Load(waiting=9)), target("c", load=Load(900.0, waiting=9, running=4))
    choice = choose(untold, busy, wish=wish)
    assert [(c.target.region, c.mark) for c in choice.candidates] == [("c", "over limit"), ("b", "handover")]


def test_those_that_could_answer_and_are_out_for_now_are_known() -> None:
    open_, bound = target("b", breaker="open"), replace(WISH, tenant=Tenant("acme", (), frozenset({"sg"})))
    abroad = target("c", breaker="open", residency=frozenset({"eu"}))
    assert [t.region for t in choose(open_, abroad, wish=bound).away] == ["b"]


def test_a_lent_probe_comes_first_in_its_tier_and_in_no_other() -> None:
    half = target("b", breaker="probing", weight=0.1)
    picture = Snapshot(1, 1, (target("a"), half), lent=frozenset({half.id}))
    choice = pick.choose(picture, WISH, default_weights())
    assert [(c.target.region, c.mark) for c in choice.candidates] == [("b", "probe"), ("a", "")]
    assert choice.reason == "b/qwen-chat@abc00000: price 1 USD/h, score 0.04, probe"
    dearer = replace(half, gpu_hour_usd=2.0)
    assert pick.choose(replace(picture, targets=(target("a"), dearer)), WISH, default_weights()).order[0].region == "a"


def test_rte_04b_a_session_whose_region_left_is_picked_anew() -> None:
    wish = replace(WISH, session="acme/s1", kept="gone")
    assert len(choose(target("b"), target("c"), wish=wish).order) == 2


def test_a_kept_pick_is_honoured_until_too_many_wait_or_it_is_out() -> None:
    wish = replace(WISH, session="acme/s1", kept="b")
    dear = target("b", gpu_hour_usd=9.0, load=Load(5000.0, waiting=5, running=4))
    kept = choose(target("a"), dear, wish=wish)
    assert (kept.order[0].region, kept.candidates[0].mark) == ("b", "kept")
    moved = choose(target("a"), replace(dear, load=Load(100.0, waiting=6, running=4)), wish=wish)
    assert [(c.target.region, c.mark) for c in moved.candidates] == [("a", ""), ("b", "handover")]
    assert [t.region for t in choose(target("a"), replace(dear, health="ejected"), wish=wish).order] == ["a"]
    patient = replace(wish, agent=agent("qwen-chat", handover_queue=6))
    assert choose(target("a"), replace(dear, load=Load(100.0, waiting=6)), wish=patient).order[0].region == "b"


def test_no_target_takes_new_sessions_above_its_share() -> None:
    full, idle = Load(10.0, waiting=0, running=4), Load(10.0, waiting=0, running=0)
    wishes = [replace(WISH, session=f"acme/s{i}") for i in range(50)]
    assert {choose(target("b", load=full), target("c", load=idle), wish=w).order[0].region for w in wishes} == {"c"}
    # Nobody knows what the share is of those who do not report.
    assert {choose(target("b", load=full), target("c"), wish=w).order[0].region for w in wishes} == {"b", "c"}


def test_a_session_that_nothing_keeps_goes_by_its_hash_alone() -> None:
    full, idle = Load(10.0, waiting=0, running=4), Load(10.0, waiting=0, running=0)
    wishes = [replace(WISH, session=f"acme/s{i}", keeps=False) for i in range(50)]

    def picks(one: Load, other: Load) -> list[str]:
        return [choose(target("b", load=one), target("c", load=other), wish=w).order[0].region for w in wishes]

    assert picks(full, idle) == picks(idle, full) == picks(idle, idle)
    assert set(picks(full, idle)) == {"b", "c"}
    # Nobody waits for its sake where others have short queues.
    assert set(picks(Load(300.0, waiting=2, running=4), idle)) == {"c"}


def test_what_is_slow_or_comes_back_gets_its_weight_of_sessions_and_scores() -> None:
    slow, fit = target("b", weight=0.25), target("c")
    firsts = [choose(slow, fit, wish=replace(WISH, session=f"s{i}")).order[0].region for i in range(1000)]
    assert 0.16 < firsts.count("b") / 1000 < 0.24
    assert choose(slow, fit).order[0].region == "c"
    (half,) = choose(target("a", weight=0.5)).candidates
    assert half.score == pytest.approx(0.5 * (0.25 + 0.45 * 0.5 + 0.2 * 0.5))


def test_rte_06_the_same_session_has_the_same_target_in_every_process() -> None:
    fleet = [target(r) for r in "bcdefgh"]
    found = "".join(choose(*fleet, wish=replace(WISH, session=f"acme/s{i}")).order[0].region for i in range(24))
    assert found == "cdcfceebhchdhdebgbffggde"
    again = [replace(t, release="f" * 64) for t in fleet]
    assert "".join(choose(*again, wish=replace(WISH, session=f"acme/s{i}")).order[0].region for i in range(24)) == found


@pytest.mark.parametrize(
    ("targets", "refused"),
    [
        ((target("a"), target("b")), "residency"),
        ((target("a", health="ejected"), target("b")), "residency"),
        ((target("a"), target("b", residency=frozenset({"eu"}), health="ejected")), "no_target"),
        ((), "no_target"),
    ],
)
def test_residency_is_the_reason_only_where_it_alone_is_to_blame(targets: tuple[Target, ...], refused: str) -> None:
    bound = replace(WISH, tenant=Tenant("acme", (), frozenset({"eu"})))
    choice = choose(*targets, wish=bound)
    assert (choice.order, choice.refused) == ((), refused)


def test_the_preferred_regions_are_those_of_stable_facts() -> None:
    out = target("b", gpu_hour_usd=0.5, health="ejected")
    assert choose(target("a"), out).preferred == {"b"}
    assert choose(target("a"), replace(out, residency=frozenset())).preferred == {"b"}
    bound = replace(WISH, tenant=Tenant("acme", (), frozenset({"sg"})))
    assert choose(target("a"), replace(out, residency=frozenset()), wish=bound).preferred == {"a"}
    assert choose(target("a"), target("c")).preferred == {"a", "c"}
    assert choose().preferred == frozenset()


def test_odd_numbers_break_nothing() -> None:
    odd = [target("b", slots=0, weight=0.0, load=Load(0.0, waiting=0, running=0)), target("c", gpu_hour_usd=0.0)]
    for session in (None, "", "\ud83e", "s" * 10_000):
        assert len(choose(*odd, wish=replace(WISH, session=session)).order) == 2


def test_other_agents_are_no_candidates_and_an_empty_fleet_says_so() -> None:
    choice = choose(target("a", agent="qwen-doc"))
    assert (choice.order, choice.candidates, choice.reason) == ((), (), "no region serves this agent")


def test_affinity_may_name_a_region_or_a_cloud() -> None:
    for place in ("b", "cloud-x"):
        loving = replace(WISH, agent=agent("qwen-chat", language_affinity={"en": place}))
        choice = choose(target("a", gpu_hour_usd=0.1), target("b", cloud="cloud-x"), wish=loving)
        assert [t.region for t in choice.order] == ["b", "a"]
        assert choice.reason.startswith("b/qwen-chat@abc00000: language affinity, score ")


def test_a_target_that_lies_nowhere_may_see_no_bound_data() -> None:
    bound = replace(WISH, tenant=Tenant("acme", (), frozenset({"eu"})))
    choice = choose(target("a", residency=frozenset()), wish=bound)
    assert choice.candidates[0].dropped == "residency: data of acme may not be in no zone"


def shares(*targets: Target, draws: int = 1000, **wish: object) -> dict[str, float]:
    """How often each region comes first, over draws spread evenly."""
    picture, asked = Snapshot(1, 1, targets), replace(WISH, **wish)  # type: ignore[arg-type]
    firsts = [pick.choose(picture, asked, default_weights(), draw=i / draws).order[0].region for i in range(draws)]
    return {t.region: firsts.count(t.region) / draws for t in targets}


def free(running: int) -> Load:
    return Load(10.0, waiting=0, running=running)


def test_other_regions_are_drawn_by_what_they_have_free_so_that_not_all_go_to_the_best() -> None:
    found = shares(target("b", load=free(0)), target("c", load=free(2)), target("d", load=free(4)))
    assert found["b"] > found["c"] > found["d"]
    assert 0.6 < found["b"] < 0.75 and 0.0 < found["d"] < 0.03
    assert sum(found.values()) == pytest.approx(1.0)


def test_what_comes_back_is_drawn_as_often_as_its_weight_says() -> None:
    found = shares(target("b", load=free(0)), target("c", load=free(0), weight=0.25))
    assert found["c"] == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("weight", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("place", [{"gpu_hour_usd": 0.5}, {"cloud": "near"}])
def test_what_comes_back_alone_in_its_tier_gets_its_weight_of_all(weight: float, place: dict[str, object]) -> None:
    """Of requests, and of sessions; one that is in at a small weight is in at a larger one."""
    back, fit = target("b", load=free(0), weight=weight, **place), target("c", load=free(0))
    assert shares(back, fit, preferred_cloud="near")["b"] == pytest.approx(weight, abs=0.04)
    wishes = [replace(WISH, session=f"acme/s{i}", preferred_cloud="near") for i in range(1000)]
    firsts = {w.session for w in wishes if choose(back, fit, wish=w).order[0].region == "b"}
    assert len(firsts) / 1000 == pytest.approx(weight, abs=0.04)
    more = replace(back, weight=min(1.0, weight + 0.1))
    assert firsts <= {w.session for w in wishes if choose(more, fit, wish=w).order[0].region == "b"}


def test_a_tier_takes_what_its_fittest_with_a_short_queue_may_take() -> None:
    slow, fit = target("b", gpu_hour_usd=0.5, load=free(0), weight=0.3), target("c", gpu_hour_usd=0.5, load=free(0))
    dear = target("d", load=free(0))
    assert shares(slow, fit, dear)["d"] == 0.0
    busy = replace(fit, load=Load(900.0, waiting=9, running=4))
    assert shares(slow, busy, dear)["d"] == pytest.approx(0.7, abs=0.04)


def test_what_has_its_share_comes_before_long_queues_and_a_session_stays_with_it() -> None:
    back = target("b", gpu_hour_usd=0.5, load=free(0), weight=0.1)
    busy, gone = target("c", load=Load(900.0, waiting=9, running=4)), target("d", health="stale")
    choice = choose(gone, busy, back)
    marks = [(c.target.region, c.mark) for c in choice.candidates]
    assert marks == [("b", "easing"), ("c", "over limit"), ("d", "backup")]
    assert choice.reason == "b/qwen-chat@abc00000: price 0.5 USD/h, score 0.08, easing"
    assert shares(back)["b"] == 1.0
    wishes = [replace(WISH, session=f"acme/s{i}", kept="b") for i in range(50)]
    assert {choose(back, target("c", load=free(0)), wish=w).order[0].region for w in wishes} == {"b"}


def test_who_looks_sees_what_most_requests_get() -> None:
    found = {w: choose(target("b", gpu_hour_usd=0.5, weight=w), target("c")).order[0].region for w in (0.1, 0.5, 0.6)}
    assert found == {0.1: "c", 0.5: "c", 0.6: "b"}


def test_the_best_at_home_is_not_drawn_for() -> None:
    assert shares(target("a", load=free(1)), target("b", load=free(1))) == {"a": 1.0, "b": 0.0}
    # Where it is not, it counts as much as all others together, as far as it has room.
    few = [target(r, load=free(1)) for r in "bcd"]
    found = shares(target("a", load=Load(100.0, waiting=1, running=1)), *few)
    assert 0.3 < found["a"] < 0.5
    assert found["b"] == pytest.approx(found["c"], abs=0.01)
    assert shares(target("a", load=Load(100.0, waiting=0, running=4)), *few)["a"] < 0.05


def test_a_draw_stays_in_the_first_tier_and_leaves_the_rest_in_order() -> None:
    fleet = (target("b"), target("c"), target("d", gpu_hour_usd=2.0), target("e", health="stale"))
    orders = {
        tuple(t.region for t in pick.choose(Snapshot(1, 1, fleet), WISH, default_weights(), draw=i / 10).order)
        for i in range(10)
    }
    assert orders == {("b", "c", "d", "e"), ("c", "b", "d", "e")}


def test_where_all_are_over_the_limit_they_are_drawn_by_how_quick_they_are() -> None:
    slow, slower = Load(500.0, waiting=9, running=4), Load(2750.0, waiting=9, running=4)
    found = shares(target("b", load=slow), target("c", load=slower))
    assert found["b"] == pytest.approx(0.8, abs=0.01)


def test_a_session_and_a_probe_are_not_drawn() -> None:
    assert set(shares(target("b"), target("c"), session="acme/s1").values()) == {0.0, 1.0}
    half = target("b", breaker="probing")
    picture = Snapshot(1, 1, (half, target("c")), lent=frozenset({half.id}))
    assert {pick.choose(picture, WISH, default_weights(), draw=i / 10).order[0].region for i in range(10)} == {"b"}


def test_a_session_that_stays_elsewhere_leaves_room_here() -> None:
    here, there = target("a"), target("b", gpu_hour_usd=2.0)
    choice = choose(here, there, wish=replace(WISH, session="s", kept="b"))
    assert [t.region for t in choice.order] == ["b", "a"] and choice.preferred == {"a"}
    assert choice.has_room("a", {there.id}) and not choice.has_room("a", {here.id, there.id})
    assert not choice.has_room("c", set())
    full = choose(replace(here, load=Load(queue_wait_p95_ms=900.0)), there, wish=replace(WISH, session="s", kept="b"))
    assert not full.has_room("a", {there.id})
