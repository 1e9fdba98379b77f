"""A snapshot as a Router uses it: with the targets of its own table, and with less trust when it has grown old."""

from __future__ import annotations

from dataclasses import replace

from serve_app.core.snapshots import Load, RegionView, Snapshot, Target, local_snapshot
from serve_app.core.table import Table


def fitted(
    snapshot: Snapshot, table: Table, bereft: frozenset[str] = frozenset(), running: frozenset[str] = frozenset()
) -> Snapshot:
    """The snapshot with this region's targets as the table names them.

    Table and snapshot come apart: of what the snapshot does not know yet nothing is claimed, and what the table names
    no longer is not a target here. ``bereft`` are apps that this Router knows to have no replica, up to seconds before
    anybody misses their reports: they are a backup. Those in ``running`` have one, whoever has not heard it yet.
    """
    mine = [t for t in snapshot.targets if t.region == table.region.name]
    told = {t.agent: t for t in mine if not t.canary}
    own = tuple(
        _as_known(
            told[plain.agent] if _same(told.get(plain.agent), plain) else _with_region(plain, snapshot), bereft, running
        )
        for plain in local_snapshot(table, snapshot.generation).targets
    )
    canaries = tuple(_as_known(t, bereft, running) for t in mine if t.canary)
    return replace(snapshot, targets=(*own, *canaries, *(t for t in snapshot.targets if t.region != table.region.name)))


def _as_known(target: Target, bereft: frozenset[str], running: frozenset[str]) -> Target:
    if target.app in running:
        return replace(target, runs=True)
    if target.app not in bereft or target.health == "ejected":
        return target
    return replace(target, health="stale", load=Load(), why="no replica runs here now")


def _same(told: Target | None, plain: Target) -> bool:
    return told is not None and (told.app, told.release) == (plain.app, plain.release)


def _with_region(plain: Target, snapshot: Snapshot) -> Target:
    return replace(plain, drained=is_drained(snapshot, plain.region))


def with_known(snapshot: Snapshot, before: Snapshot, region: str) -> Snapshot:
    """The picture of a RegionAgent that begins anew: whom it has not heard yet is as well as in the picture before.

    An engine that serves here would else be taken for one that starts, and its requests would go elsewhere.
    """
    known = {t.id: t for t in before.targets if t.health in ("healthy", "slow")}
    told = {t.id for t in snapshot.targets}
    unheard = {r.name for r in snapshot.regions if r.health == "unknown" and r.name != region}

    def target(t: Target) -> Target:
        was = known.get(t.id)
        if t.health != "unknown" or was is None:
            return t
        return replace(t, health=was.health, load=was.load, weight=was.weight, why=was.why)

    kept = (t for t in before.targets if t.region in unheard and t.id not in told)
    return replace(snapshot, targets=(*map(target, snapshot.targets), *kept))


def aged(snapshot: Snapshot, region: str) -> Snapshot:
    """The last snapshot of a RegionAgent that is silent: drains stay, nothing is claimed of the own targets any more,
    and peers that were well are a backup. Breakers of the region are no longer shared: each Router has its own."""

    def target(t: Target) -> Target:
        if t.region == region:
            return replace(t, health="unknown", weight=1.0, breaker="closed", why="the RegionAgent is silent")
        if t.health in ("healthy", "slow"):
            return replace(t, health="stale", breaker="closed", why="the RegionAgent is silent")
        return replace(t, breaker="closed")

    def view(r: RegionView) -> RegionView:
        if r.name == region:
            return replace(r, health="unknown", why="the RegionAgent is silent")
        return replace(r, health="stale", why="the RegionAgent is silent") if r.health in ("healthy", "slow") else r

    targets, regions = tuple(map(target, snapshot.targets)), tuple(map(view, snapshot.regions))
    return replace(snapshot, targets=targets, regions=regions, lent=frozenset(), open_for_s={})


def is_drained(snapshot: Snapshot, region: str) -> bool:
    """Whether an operator took this region out."""
    return any(r.name == region and r.drained for r in snapshot.regions)


def via_peers(snapshot: Snapshot, region: str) -> bool:
    """Whether some other region could serve now, as far as this one knows."""
    return any(
        t.region != region
        and t.health in ("healthy", "slow")
        and t.accepts_spill
        and not t.drained
        and t.breaker == "closed"
        for t in snapshot.targets
    )
