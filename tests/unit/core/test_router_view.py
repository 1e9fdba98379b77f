"""A Router's own use of a snapshot: with its own table, and after its RegionAgent has fallen silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.router_view import aged, fitted, is_drained, via_peers
from serve_app.core.snapshots import Load, RegionView, Snapshot, Target
from tests.fakes import a_table, agent

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
