"""Choice of a target: filters, tiers, scores, and that order never depends on the order of the snapshot."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from serve_app.core import pick
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.core.table import Scoring, Tenant
from tests.fakes import agent

ANY = Tenant("acme", (), frozenset({"any"}))
WISH = pick.Wish(agent("qwen-chat"), ANY, "en", 10, region="a")


def target(region: str, **changes: object) -> Target:
    made = Target(region, region, "qwen-chat", "app", "abc" + "0" * 61, 1000, 4, frozenset({"sg"}), 1.0, "healthy")
    return replace(made, **changes)  # type: ignore[arg-type]


def choose(*targets: Target, wish: pick.Wish = WISH) -> pick.Choice:
    return pick.choose(Snapshot(1, 1, targets), wish, Scoring())


def test_scores_are_weighted_sums_of_four() -> None:
    load = Load(queue_wait_p95_ms=250.0, waiting=1, running=1, network_ms=100.0)
    (one,) = choose(target("b", load=load)).candidates
    assert one.scores == {"network": 0.5, "queue": 0.5, "headroom": 0.5, "cost": 0.0}
    assert one.score == pytest.approx(0.25 * 0.5 + 0.45 * 0.5 + 0.2 * 0.5)
    assert one.tier == "price 1 USD/h"


def test_no_data_scores_in_the_middle_and_home_is_near() -> None:
    (home,) = choose(target("a")).candidates
    assert home.scores == {"network": 1.0, "queue": 0.5, "headroom": 0.5, "cost": 0.0}
    (away,) = choose(target("b")).candidates
    assert away.scores["network"] == 0.5


def test_a_full_target_has_no_headroom_but_is_not_below_zero() -> None:
    (full,) = choose(target("a", load=Load(0.0, 100, 4))).candidates
    assert full.scores["headroom"] == 0.0
    (free,) = choose(target("a", gpu_hour_usd=0.0)).candidates
    assert free.scores["cost"] == 1.0


def test_the_limit_itself_counts_as_busy() -> None:
    busy, dear = target("a", load=Load(250.0, 0, 0)), target("b", gpu_hour_usd=9.0, load=Load(249.9, 0, 0))
    assert [t.region for t in choose(busy, dear).order] == ["b", "a"]


def test_order_does_not_depend_on_the_snapshots_order() -> None:
    targets = [target("a"), target("b", load=Load(900.0, 1, 1)), target("c", gpu_hour_usd=0.5), target("d")]
    orders = {tuple(t.region for t in choose(*p).order) for p in permutations(targets)}
    assert orders == {("c", "a", "d", "b")}


def test_a_pin_takes_only_its_release() -> None:
    pinned = replace(WISH, pinned_release="abc")
    choice = choose(target("a"), target("b", release="f" * 64), wish=pinned)
    assert [t.region for t in choice.order] == ["a"]
    assert choice.candidates[1].dropped == "serves release ffffffffffff, not abc"


@pytest.mark.parametrize("health", ["ejected", "stale"])
def test_targets_out_of_service_are_dropped(health: str) -> None:
    choice = choose(target("a", health=health))
    assert choice.order == ()
    assert choice.reason == f"a/qwen-chat@abc00000: is {health}"
    assert choice.candidates[0].score is None


@pytest.mark.parametrize("health", ["healthy", "slow", "probing", "unknown"])
def test_every_other_health_may_answer(health: str) -> None:
    assert len(choose(target("a", health=health)).order) == 1


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
