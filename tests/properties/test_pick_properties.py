"""Whatever the fleet looks like, the choice of a target keeps its promises."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serve_app.core import pick, pick_order
from serve_app.core.retry import MAX_ATTEMPTS
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import BreakerState, Health, Load, Snapshot, Target
from serve_app.core.table import Tenant
from serve_app.core.tenants import check_residency
from tests.fakes import agent

HOME = "r0"


def fleet_of(seed: int) -> Snapshot:
    """A fleet of at most eight targets, drawn here: hypothesis takes a hundred times as long for so many fields."""
    draw = random.Random(seed)

    def maybe(number: float) -> float | None:
        return None if draw.random() < 0.2 else number

    def count() -> int | None:
        return None if draw.random() < 0.2 else draw.randrange(40)

    targets = tuple(
        Target(
            region=f"r{i}",
            cloud=f"c{i % 3}",
            agent=draw.choice(["qwen-chat"] * 6 + ["qwen-doc"]),
            app="app",
            release=f"{i}" * 64,
            max_model_len=draw.choice([8192] * 6 + [10]),
            slots=draw.randrange(1, 33),
            residency=frozenset(draw.choices(["sg", "eu"], k=2)),
            gpu_hour_usd=draw.choice([0.0, 1.0, 1.0, 2.5]),
            health=draw.choice(HEALTHS),
            load=Load(
                queue_wait_p95_ms=maybe(draw.uniform(0, 600)),
                oldest_wait_ms=maybe(draw.uniform(0, 600)),
                waiting=count(),
                running=count(),
                network_ms=maybe(draw.uniform(0, 900)),
            ),
            weight=draw.choice([1.0, 1.0, 0.3, 0.1]),
            breaker=draw.choice(BREAKERS),
            accepts_spill=draw.random() < 0.85,
            drained=draw.random() < 0.15,
            drifted=draw.random() < 0.1,
        )
        for i in range(draw.randrange(9))
    )
    lent = frozenset(t.id for t in targets if t.breaker == "probing" and draw.random() < 0.5)
    return Snapshot(1, 1, targets, lent=lent)


HEALTHS: tuple[Health, ...] = (*["healthy"] * 5, "slow", "ejected", "probing", "stale", "unknown")  # type: ignore[assignment]
BREAKERS: tuple[BreakerState, ...] = (*["closed"] * 5, "open", "probing")  # type: ignore[assignment]
FLEETS = st.integers(0, 2**32).map(fleet_of)
WISHES = st.builds(
    pick.Wish,
    st.builds(
        lambda love, queue: agent("qwen-chat", language_affinity={"ja": love}, handover_queue=queue),
        st.sampled_from(["c1", "r2", "nowhere"]),
        st.integers(0, 10),
    ),
    st.sampled_from([Tenant("a", (), frozenset(zones)) for zones in (["any"], ["any"], ["eu"], ["cn"])]),
    st.sampled_from(["ja", "en"]),
    st.just(10),
    preferred_cloud=st.sampled_from([None, "c2"]),
    data_class=st.sampled_from([None, None, None, "eu"]),
    region=st.just(HOME),
    session=st.none() | st.text(max_size=8),
    kept=st.sampled_from([None, "r0", "r3", "gone"]),
    hops=st.sampled_from([0, 0, 0, 1]),
)
SENT = st.dictionaries(st.integers(0, 7), st.integers(-20, 20), max_size=8)


def choose(
    fleet: Snapshot, wish: pick.Wish, sent: dict[int, int], blocked: frozenset[str] = frozenset()
) -> pick.Choice:
    in_flight = {t.id: n for i, n in sent.items() for t in fleet.targets[i : i + 1]}
    draw = (sum(sent) % 10) / 10 if sent else None
    return pick.choose(fleet, wish, default_weights(), blocked=blocked, in_flight=in_flight, draw=draw)


def is_backup(target: Target, usable: Sequence[Target]) -> bool:
    """Nobody hears of it, it is drained, or it is starting while others are well."""
    is_backed = any(t.health in ("healthy", "slow") for t in usable)
    return target.health == "stale" or target.drained or (target.health == "unknown" and is_backed)


@given(FLEETS, WISHES, SENT, st.data())
def test_no_filtered_target_is_ever_in_the_order(
    fleet: Snapshot, wish: pick.Wish, sent: dict[int, int], data: st.DataObject
) -> None:
    blocked = frozenset(t.id for t in fleet.targets if data.draw(st.integers(0, 9)) == 0)
    choice = choose(fleet, wish, sent, blocked)
    for t in choice.order:
        assert t.agent == "qwen-chat" and t.health != "ejected"
        assert t.max_model_len > wish.prompt_tokens or all(o.max_model_len <= wish.prompt_tokens for o in choice.order)
        assert check_residency(wish.tenant, t.residency, wish.data_class)
        assert not t.drifted and t.id not in blocked
        assert t.breaker == "closed" or (t.breaker == "probing" and t.id in fleet.lent)
        if t.region != HOME:
            assert t.accepts_spill and not t.drained and not wish.hops and t.health != "unknown"
    present = [t for t in fleet.targets if t.agent == "qwen-chat"]
    assert sorted(t.id for t in choice.order) == sorted(c.target.id for c in choice.candidates if c.dropped is None)
    assert sorted(c.target.id for c in choice.candidates) == sorted(t.id for t in present)
    assert all(c.dropped is None or (c.score is None and c.dropped) for c in choice.candidates)
    assert (choice.refused is None) == bool(choice.order)
    assert all(0.0 <= part <= 1.0 for c in choice.candidates for part in c.parts)
    assert choice.reason


@given(FLEETS, WISHES, SENT, st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_means_nothing(
    fleet: Snapshot, wish: pick.Wish, sent: dict[int, int], rng: object
) -> None:
    in_flight = {t.id: n for i, n in sent.items() for t in fleet.targets[i : i + 1]}
    shuffled = list(fleet.targets)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    first = pick.choose(fleet, wish, default_weights(), in_flight=in_flight)
    assert pick.choose(fleet, wish, default_weights(), in_flight=in_flight) == first
    other = pick.choose(replace(fleet, targets=tuple(shuffled)), wish, default_weights(), in_flight=in_flight)
    assert (other.order, other.candidates, other.reason) == (first.order, first.candidates, first.reason)
    assert (other.preferred, other.refused) == (first.preferred, first.refused)


@given(FLEETS, WISHES, SENT)
def test_a_kept_pick_is_first_while_it_may_answer(fleet: Snapshot, wish: pick.Wish, sent: dict[int, int]) -> None:
    assume(wish.kept is not None)
    choice = choose(fleet, wish, sent)
    (kept, *_) = [t for t in choice.order if t.region == wish.kept] or [None]
    if kept is None:
        return
    fits = not is_backup(kept, choice.order) and (kept.load.waiting or 0) <= wish.agent.handover_queue
    if fits:
        assert choice.order[0] == kept
    elif kept == choice.order[0]:
        # Nobody with a short queue is there instead.
        late = ("easing", "handover", "over limit", "backup")
        assert all(c.mark in late for c in choice.candidates if c.dropped is None)


@given(FLEETS, WISHES, SENT)
def test_tiers_and_short_queues_come_before_everything_else(
    fleet: Snapshot, wish: pick.Wish, sent: dict[int, int]
) -> None:
    wish = replace(wish, kept=None)
    rows = [c for c in choose(fleet, wish, sent).candidates if c.dropped is None]
    place = {"": 0, "probe": 0, "easing": 1, "over limit": 2, "backup": 3}
    groups = [place[c.mark] for c in rows]
    assert groups == sorted(groups)
    short = [c.tier_rank for c in rows if place[c.mark] == 0]
    assert short == sorted(short)
    assert all(is_backup(c.target, [c.target for c in rows]) == (c.mark == "backup") for c in rows)


@given(FLEETS, WISHES, SENT, st.floats(0.0, 1.0, exclude_max=True))
def test_who_compares_only_what_may_be_needed_tries_the_same(
    fleet: Snapshot, wish: pick.Wish, sent: dict[int, int], draw: float
) -> None:
    in_flight = {t.id: n for i, n in sent.items() for t in fleet.targets[i : i + 1]}
    whole = pick.choose(fleet, wish, default_weights(), in_flight=in_flight)
    quick = pick.choose(fleet, wish, default_weights(), in_flight=in_flight, draw=draw)
    assert sorted(t.id for t in quick.order) == sorted(t.id for t in whole.order)
    assert (quick.preferred, quick.refused) == (whole.preferred, whole.refused)
    # Which side of its share of a tier a request falls on is drawn too.
    assume(quick.look.marks == whole.look.marks)
    marks = {c.target.id: (c.mark, c.tier_rank if c.mark != "over limit" else None) for c in whole.candidates}
    if whole.order:
        # Whoever is drawn stands where the best one stands; the others are tried as they were.
        assert marks[quick.order[0].id] == marks[whole.order[0].id]
        rest = [t for t in whole.order if t != quick.order[0]]
        assert list(quick.order[1:MAX_ATTEMPTS]) == rest[: MAX_ATTEMPTS - 1]
        if wish.session is not None or whole.order[0].region == HOME:
            assert quick.order[0] == whole.order[0]
    assert all(c.score is not None for c in whole.candidates if c.dropped is None)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_few_sessions_move_when_one_target_is_lost(count: int) -> None:
    sessions = [f"acme/{i}" for i in range(600)]
    targets = [
        Target(f"r{i}", "c", "qwen-chat", "app", "0" * 64, 8192, 16, frozenset({"eu"}), 1.0, "healthy")
        for i in range(1, count + 1)
    ]
    asked = pick.Wish(agent("qwen-chat"), Tenant("a", (), frozenset({"any"})), "en", 10, region=HOME)

    def picks(fleet: list[Target]) -> list[str]:
        picture = Snapshot(1, 1, tuple(fleet))
        return [pick.choose(picture, replace(asked, session=s), default_weights()).order[0].region for s in sessions]

    before = picks(targets)
    after = picks(targets[1:])
    moved = sum(a != b for a, b in zip(before, after, strict=True))
    assert moved == before.count(targets[0].region)
    assert moved <= len(sessions) * (1 / count + 0.03)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=8), st.text(max_size=6))
def test_no_session_goes_above_its_targets_share(busy: list[int], session: str) -> None:
    targets = tuple(
        Target(
            f"r{i + 1}", "c", "qwen-chat", "app", "0" * 64, 8192, 16, frozenset(), 1.0, "healthy",
            Load(1.0, waiting=0, running=running),
        )
        for i, running in enumerate(busy)
    )  # fmt: skip
    asked = pick.Wish(agent("qwen-chat"), Tenant("a", (), frozenset({"any"})), "en", 10, region=HOME, session=session)
    first = pick.choose(Snapshot(1, 1, targets), asked, default_weights()).order[0]
    assert (first.load.running or 0) + 1 <= math.ceil(pick_order.BOUND * (sum(busy) + 1) / len(busy))
