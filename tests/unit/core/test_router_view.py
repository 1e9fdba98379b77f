"""A Router's own use of a snapshot: with its own table, and after its RegionAgent has fallen silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.pick import Wish, choose
from serve_app.core.region_state import RegionCore
from serve_app.core.reports import BEGIN_S
from serve_app.core.router_view import Remembered, aged, fitted, is_drained, via_peers
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


def filled(seen: Snapshot, before: Snapshot, at_s: float = 100.0) -> Snapshot:
    """What a Router makes of the first picture of a new RegionAgent."""
    made = Remembered()
    made.begin(before, at_s)
    return made.fill(seen, "cloud-a", at_s)


def shown(made: Snapshot) -> list[tuple[str, str]]:
    return [(t.region, t.health) for t in made.targets]


def test_whom_a_new_agent_has_not_heard_yet_is_as_before() -> None:
    before = snapshot(target(health="slow", weight=0.3), target("cloud-b"), target("cloud-c"), target("cloud-d"))
    regions = (
        view("cloud-a", health="unknown"),
        view("cloud-b", health="unknown"),
        view("cloud-c"),
        view("cloud-d", health="unknown", fault="connection refused"),
    )
    seen = snapshot(target(**NEW, drained=True), target("cloud-c", health="ejected"), regions=regions)
    made = filled(seen, before)
    assert [(t.region, t.health, t.weight, t.load.waiting, t.drained) for t in made.targets] == [
        ("cloud-a", "slow", 0.3, 1, True),
        ("cloud-c", "ejected", 1.0, 1, False),
        ("cloud-b", "healthy", 1.0, 1, False),
    ]
    assert (made.epoch, made.generation, made.regions) == (9, 3, regions)
    heard = snapshot(target())
    assert filled(heard, before) == heard


@pytest.mark.parametrize("health", ["ejected", "stale"])
def test_who_was_not_well_is_no_better_for_a_new_agent(health: str) -> None:
    seen = snapshot(target(**NEW))
    (made,) = filled(seen, snapshot(target(health=health, why="no token"))).targets
    assert (made.health, made.why) == (health, "no token")


@pytest.mark.parametrize("was", [{"release": "f" * 64}, {"app": "gone--00000000", "agent": "gone"}])
def test_what_a_new_agent_does_not_serve_is_not_remembered(was: dict[str, str]) -> None:
    seen = snapshot(target(**NEW))
    assert filled(seen, snapshot(target(**was))) == seen


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        ({}, True),
        # The link to it is refused, its beats say that it is out, or it says itself that it does not know.
        ({"health": "unknown", "fault": "cloud-b at 127.0.0.1:7643: connection refused"}, False),
        ({"health": "ejected", "why": "peer silent for 1.2 s"}, False),
        ({"health": "healthy"}, True),
    ],
)
@pytest.mark.parametrize("knows", [True, False])
def test_a_peer_that_is_known_to_be_dead_is_out_at_once(peer: dict[str, str], told: bool, knows: bool) -> None:
    regions = (view("cloud-a"), view("cloud-b", **{"health": "unknown", **peer}))
    targets = [target(), *([target("cloud-b", **NEW)] if knows else [])]
    made = filled(snapshot(*targets, regions=regions), snapshot(target(), target("cloud-b")))
    wish = Wish(CHAT, ANYBODY, "en", 10, region="cloud-a")
    asked = "cloud-b" in [t.region for t in choose(made, wish, default_weights()).order]
    assert asked is (told and peer.get("health") != "healthy")


def test_what_is_remembered_ends_in_time_however_many_begin_anew() -> None:
    made, before = Remembered(), snapshot(target(), target("cloud-b"))
    regions = (view("cloud-a", health="unknown"), view("cloud-b", health="unknown"))
    seen = snapshot(target(**NEW), target("cloud-b", **NEW), regions=regions)
    assert made.ends_s() is None
    for at_s in (100.0, 102.0, 104.0):
        made.begin(before, at_s)
        before = made.fill(seen, "cloud-a", at_s)
        assert (shown(before), made.ends_s()) == ([("cloud-a", "healthy"), ("cloud-b", "healthy")], 100.0 + BEGIN_S)
    made.begin(before, 104.9)
    assert (made.fill(seen, "cloud-a", 105.0), made.ends_s()) == (seen, None)


def test_a_word_of_one_agent_holds_over_the_next() -> None:
    made, before = Remembered(), snapshot(target(), target("cloud-b"))
    unheard = (view("cloud-a", health="unknown"), view("cloud-b", health="unknown"))
    made.begin(before, 100.0)
    # The second has heard its own engine fail, and of the peer nothing.
    second = made.fill(snapshot(target(health="ejected"), target("cloud-b", **NEW), regions=unheard), "cloud-a", 101.0)
    assert shown(second) == [("cloud-a", "ejected"), ("cloud-b", "healthy")]
    # What it has not said anew it does not know again.
    new = snapshot(target(**NEW), target("cloud-b", **NEW), regions=unheard)
    assert shown(made.fill(new, "cloud-a", 102.0)) == [("cloud-a", "unknown"), ("cloud-b", "healthy")]
    made.begin(second, 104.0)
    assert shown(made.fill(new, "cloud-a", 104.0)) == [("cloud-a", "ejected"), ("cloud-b", "healthy")]
    # Each has its own time.
    assert shown(made.fill(new, "cloud-a", 105.0)) == [("cloud-a", "ejected"), ("cloud-b", "unknown")]
    assert shown(made.fill(new, "cloud-a", 109.0)) == [("cloud-a", "unknown"), ("cloud-b", "unknown")]


def test_a_cool_down_is_not_shortened_by_an_agent_that_does_not_know_of_it() -> None:
    made, peer = Remembered(), target("cloud-b", breaker="open")
    before = replace(snapshot(target(), peer), open_for_s={peer.id: 20.0}, received_s=90.0)
    made.begin(before, 100.0)
    new = replace(snapshot(target(), target("cloud-b")), open_for_s={})
    for at_s, breaker, open_for_s in (
        (100.0, "open", {peer.id: 10.0}),
        (109.0, "open", {peer.id: 1.0}),
        (110.0, "closed", {}),
    ):
        seen = made.fill(new, "cloud-a", at_s)
        assert (seen.targets[1].breaker, seen.open_for_s) == (breaker, open_for_s)
    # A Router has told it: now it knows as well as anybody.
    made.begin(before, 100.0)
    told = replace(snapshot(target(), replace(peer, breaker="probing")), open_for_s={peer.id: 0.0})
    assert made.fill(told, "cloud-a", 101.0) == told


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
    assert choose(filled(seen, before), wish, default_weights()).order[0].region == "cloud-a"


def test_a_link_that_is_refused_is_news_at_once() -> None:
    """The production state of a RegionAgent whose gateway began anew too, when a peer died meanwhile."""
    old, new = core(), RegionCore(FACTS, 8)
    old.peers([beat()], 0.0)
    made = Remembered()
    made.begin(old.snapshot_for("r", 0.0), 0.0)
    new.peers([beat(None, state=None)], 1.0)
    first = new.snapshot_for("r", 1.0)
    assert ("cloud-b", "healthy") in shown(made.fill(first, "cloud-a", 1.0))
    new.peers([beat(None, state=None, fault="connection refused")], 1.0)
    second = new.snapshot_for("r", 1.0)
    assert (second.generation, second.regions[1].fault) == (first.generation + 1, "connection refused")
    assert "cloud-b" not in [region for region, _ in shown(made.fill(second, "cloud-a", 1.0))]


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
