"""A Router's own use of a snapshot: with its own table, and after its RegionAgent has fallen silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.pick import Wish, choose
from serve_app.core.region_state import RegionCore
from serve_app.core.router_view import aged, fitted, is_drained, via_peers, with_known
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Load, RegionView, Snapshot, Target
from serve_app.core.tenants import ANYBODY
from tests.fakes import a_table, agent
from tests.region_fakes import FACTS, beat, core, push

TABLE = a_table()
CHAT = TABLE.agents["qwen-chat"]


def target(region: str = "cloud-a", **changes: object) -> Target:
    made = Target(
        region, region, "qwen-chat", CHAT.app, CHAT.release, 1000, 4, frozenset(), 1.0, "healthy", Load(waiting=1)
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def view(name: str, **changes: object) -> RegionView:
    return replace(RegionView(name, name, "healthy", "", True), **changes)  # type: ignore[arg-type]


def snapshot(*targets: Target, regions: tuple[RegionView, ...] = (view("cloud-a"), view("cloud-b"))) -> Snapshot:
    return Snapshot(9, 3, targets, regions, frozenset({"x"}), {"x": 4.0})


def test_what_the_agent_says_of_the_tables_own_targets_holds() -> None:
    seen = snapshot(target(), target("cloud-b"))
    made = fitted(seen, TABLE)
    assert [(t.region, t.agent, t.health) for t in made.targets] == [
        ("cloud-a", "qwen-chat", "healthy"),
        ("cloud-a", "qwen-doc", "unknown"),
        ("cloud-b", "qwen-chat", "healthy"),
    ]
    assert (made.epoch, made.generation, made.lent, made.open_for_s) == (9, 3, frozenset({"x"}), {"x": 4.0})


@pytest.mark.parametrize("changes", [{"release": "f" * 64}, {"app": "qwen-chat--99999999"}])
def test_of_a_release_that_the_agent_does_not_know_yet_nothing_is_claimed(changes: dict[str, str]) -> None:
    made = fitted(snapshot(target(**changes)), a_table(agents={"qwen-chat": CHAT}))
    assert [(t.release, t.app, t.health, t.load) for t in made.targets] == [(CHAT.release, CHAT.app, "unknown", Load())]


def test_an_agent_that_left_the_table_is_no_target_here() -> None:
    made = fitted(snapshot(target(agent="gone")), a_table(agents={"qwen-doc": agent("qwen-doc")}))
    assert [t.agent for t in made.targets] == ["qwen-doc"]


def test_an_engine_without_replicas_is_a_backup_before_its_reports_are_missed() -> None:
    made = fitted(snapshot(target(), target("cloud-b")), TABLE, frozenset({CHAT.app}))
    assert [(t.region, t.agent, t.health, t.why, t.load.waiting) for t in made.targets] == [
        ("cloud-a", "qwen-chat", "stale", "no replica runs here now", None),
        ("cloud-a", "qwen-doc", "unknown", "", None),
        ("cloud-b", "qwen-chat", "healthy", "", 1),
    ]
    out = fitted(snapshot(target(health="ejected", why="no token")), TABLE, frozenset({CHAT.app}))
    assert (out.targets[0].health, out.targets[0].why) == ("ejected", "no token")


def test_an_engine_that_runs_is_no_engine_that_starts_whoever_has_not_heard_it_yet() -> None:
    wish = Wish(CHAT, ANYBODY, "en", 10, region="cloud-a")
    # After a switch to another engine the RegionAgent may still tell of the one before.
    seen = snapshot(target(app="qwen-chat--99999999"), target("cloud-b", gpu_hour_usd=2.0))
    for running, order in ((frozenset(), ["cloud-b", "cloud-a"]), (frozenset({CHAT.app}), ["cloud-a", "cloud-b"])):
        made = fitted(seen, TABLE, running=running)
        assert [t.region for t in choose(made, wish, default_weights()).order] == order
        assert (made.targets[0].health, made.targets[0].runs) == ("unknown", bool(running))


def test_a_drain_holds_for_targets_that_the_agent_does_not_know_yet() -> None:
    made = fitted(snapshot(regions=(view("cloud-a", drained=True),)), TABLE)
    assert [t.drained for t in made.targets] == [True, True]


def test_a_silent_agent_leaves_the_own_targets_in_use_and_the_peers_as_a_backup() -> None:
    seen = snapshot(
        target(health="ejected", weight=0.5, breaker="open", drained=True),
        target("cloud-b", health="slow"),
        target("cloud-c", health="ejected", why="peer silent for 1.2 s"),
    )
    made = aged(seen, "cloud-a")
    assert [(t.health, t.weight, t.breaker, t.drained, t.why) for t in made.targets] == [
        ("unknown", 1.0, "closed", True, "the RegionAgent is silent"),
        ("stale", 1.0, "closed", False, "the RegionAgent is silent"),
        ("ejected", 1.0, "closed", False, "peer silent for 1.2 s"),
    ]
    assert [r.health for r in made.regions] == ["unknown", "stale"]
    assert (made.lent, made.open_for_s, made.generation) == (frozenset(), {}, 3)


NEW = {"health": "unknown", "why": "no replica has reported yet", "load": Load()}


def test_whom_a_new_agent_has_not_heard_yet_is_as_well_as_before() -> None:
    before = snapshot(target(health="slow", weight=0.3), target("cloud-b"), target("cloud-c"))
    regions = (view("cloud-a", health="unknown"), view("cloud-b", health="unknown"), view("cloud-c"))
    seen = snapshot(target(**NEW, drained=True), target("cloud-c", health="ejected"), regions=regions)
    made = with_known(seen, before, "cloud-a")
    assert [(t.region, t.health, t.weight, t.load.waiting, t.drained) for t in made.targets] == [
        ("cloud-a", "slow", 0.3, 1, True),
        ("cloud-c", "ejected", 1.0, 1, False),
        ("cloud-b", "healthy", 1.0, 1, False),
    ]
    assert (made.epoch, made.generation, made.regions) == (9, 3, regions)
    heard = snapshot(target())
    assert with_known(heard, before, "cloud-a") == heard


def test_a_new_agent_sends_nothing_away_that_is_served_here() -> None:
    """The production state of a RegionAgent that was replaced, as a Router chooses by it."""
    wish = Wish(CHAT, ANYBODY, "en", 10, region="cloud-a")
    old, new = core(agents={"qwen-chat": CHAT}), RegionCore(replace(FACTS, agents={"qwen-chat": CHAT}), 8)
    for made in (old, new):
        made.peers([beat()], 0.0)
    old.replica(push(), 0.0)
    before, seen = old.snapshot_for("r", 0.0), new.snapshot_for("r", 0.0)
    first = [choose(s, wish, default_weights()).order[0].region for s in (before, seen)]
    assert first == ["cloud-a", "cloud-b"]
    assert choose(with_known(seen, before, "cloud-a"), wish, default_weights()).order[0].region == "cloud-a"


@pytest.mark.parametrize("was", [{"health": "ejected"}, {"health": "stale"}, {"release": "f" * 64}])
def test_a_new_agent_is_told_nothing_of_who_was_not_well_or_serves_another_release(was: dict[str, str]) -> None:
    seen = snapshot(target(**NEW))
    assert with_known(seen, snapshot(target(**was)), "cloud-a") == seen


def test_drained_is_what_the_own_region_is() -> None:
    seen = snapshot(regions=(view("cloud-a"), view("cloud-b", drained=True)))
    assert [is_drained(seen, r) for r in ("cloud-a", "cloud-b", "moon")] == [False, True, False]


@pytest.mark.parametrize(
    ("peer", "can"),
    [
        ({}, True),
        ({"health": "slow"}, True),
        ({"health": "stale"}, False),
        ({"health": "ejected"}, False),
        ({"accepts_spill": False}, False),
        ({"drained": True}, False),
        ({"breaker": "open"}, False),
    ],
)
def test_peers_can_serve_when_one_of_them_is_well(peer: dict[str, object], can: bool) -> None:
    assert via_peers(snapshot(target(), target("cloud-b", **peer)), "cloud-a") is can
    assert via_peers(snapshot(target()), "cloud-a") is False
