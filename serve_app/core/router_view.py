"""A snapshot as a Router uses it: with the targets of its own table, and with less trust when it has grown old."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from serve_app.core.reports import BEGIN_S
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


@dataclass(slots=True)
class Remembered:
    """What was known before a RegionAgent began anew, until the new one knows better.

    An engine that serves here would else be taken for one that starts, and its requests would go elsewhere. What is
    remembered of a target ends with the first word about it, good or bad, or when its region cannot be reached; and by
    itself :data:`BEGIN_S` after the first RegionAgent that did not know it, however many begin anew meanwhile.
    """

    _targets: dict[str, tuple[float, Target]] = field(default_factory=dict)
    _open_until_s: dict[str, float] = field(default_factory=dict)

    def begin(self, before: Snapshot, now_s: float) -> None:
        """Another RegionAgent tells from now on; ``before`` is the picture in use."""
        for target in before.targets:
            if target.health != "unknown":
                self._targets.setdefault(target.id, (now_s + BEGIN_S, target))
            left_s = before.recover_s(target.id, now_s)
            if target.breaker == "open" and left_s:
                self._open_until_s[target.id] = now_s + left_s

    def ends_s(self) -> float | None:
        """When the first of it ends by itself; ``None``: nothing is remembered."""
        return min((until_s for until_s, _ in self._targets.values()), default=None)

    def fill(self, snapshot: Snapshot, region: str, now_s: float) -> Snapshot:
        """A picture of the RegionAgent of ``region``, with what it cannot know yet."""
        told = {t.id: t for t in snapshot.targets}
        unheard = {r.name for r in snapshot.regions if r.health == "unknown" and r.name != region and not r.fault}

        def is_unsure(was: Target) -> bool:
            now = told.get(was.id)
            is_open = now is not None if was.region == region else was.region in unheard
            return is_open and (now is None or now.health == "unknown")

        self._targets = {
            i: (until_s, was) for i, (until_s, was) in self._targets.items() if now_s < until_s and is_unsure(was)
        }
        self._open_until_s = {
            i: until_s for i, until_s in self._open_until_s.items() if now_s < until_s and i not in snapshot.open_for_s
        }
        if not self._targets and not self._open_until_s:
            return snapshot
        kept = (was for i, (_, was) in self._targets.items() if i not in told)
        open_for_s = {i: until_s - now_s for i, until_s in self._open_until_s.items()}
        return replace(
            snapshot,
            targets=(*map(self._filled, snapshot.targets), *map(self._filled, kept)),
            open_for_s={**snapshot.open_for_s, **open_for_s},
        )

    def _filled(self, target: Target) -> Target:
        if target.id in self._targets:
            _, was = self._targets[target.id]
            target = replace(
                target, health=was.health, load=was.load, weight=was.weight, why=was.why, start_s=was.start_s
            )
        # A cool-down is never shortened, by nobody's forgetting it either.
        return replace(target, breaker="open") if target.id in self._open_until_s else target


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
