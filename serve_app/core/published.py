"""When a picture of the fleet becomes a new snapshot: at once when something turned, of numbers only now and then."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.core.snapshots import Load, RegionView, Snapshot, Target
from serve_app.core.trial import Tried

#: Numbers alone make a new snapshot at most this often, and a snapshot with other numbers is never older.
NUMBERS_EVERY_S: Final = 0.3
#: A reason is the same one whatever numbers it names.
_NO_DIGITS: Final = dict.fromkeys(map(ord, "0123456789."))


def _notch(value: float | None, unit: float) -> int | None:
    """A number in steps that grow with it: about half as much again each."""
    return None if value is None else int(2.0 * math.log2(1.0 + value / unit))


def _tenth(ratio: float | None) -> int | None:
    """A ratio in tenths; what is far above 1 is none, and all of it is the same."""
    return None if ratio is None else round(min(ratio, 2.0) * 10)


def coarse(load: Load) -> Hashable:
    """A load in steps; a Router that saw another one of the same step would choose the same."""
    return (
        _notch(load.queue_wait_p95_ms, 10.0),
        _notch(load.oldest_wait_ms, 10.0),
        _notch(load.waiting, 1.0),
        _notch(load.running, 1.0),
        _tenth(load.kv_cache_used_ratio),
        _notch(load.first_token_p95_ms, 10.0),
        _tenth(load.error_ratio),
        _notch(load.network_ms, 5.0),
    )


def _facts(target: Target) -> Hashable:
    where = (target.id, target.app, target.slots, target.max_model_len, target.residency, target.gpu_hour_usd)
    said = target.why.translate(_NO_DIGITS)
    marks = (target.accepts_spill, target.drained, target.drifted, target.short, target.canary)
    return (*where, target.health, target.breaker, *marks, said)


@dataclass(frozen=True, slots=True)
class Part:
    """The targets of one region, with what is compared of them: made once, and used until something of it changes."""

    targets: tuple[Target, ...]
    ids: tuple[str, ...]
    facts: Hashable
    numbers: Hashable

    @classmethod
    def of(cls, targets: tuple[Target, ...]) -> Part:
        numbers = tuple((round(t.weight, 1), coarse(t.load)) for t in targets)
        return cls(targets, tuple(t.id for t in targets), tuple(_facts(t) for t in targets), numbers)


class Publisher:
    """Holds the last snapshot, and makes the next one when a Router would see a difference that matters."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._generation = 0
        self._facts: Hashable = None
        self._numbers: Hashable = None
        self._published_s = 0.0
        self._last: Snapshot | None = None

    def outrank(self, seen: tuple[int, int]) -> None:
        """Somebody has a snapshot that is later than the last from here: the next one is later than every such one."""
        if seen > (self._epoch, self._generation):
            self._epoch, self._facts = seen[0] + 1, None

    def publish(
        self, parts: Sequence[Part], regions: tuple[RegionView, ...], now_s: float, tried: Tried | None = None
    ) -> Snapshot:
        """The snapshot of now: the last one, unless it is no longer true enough."""
        facts = (
            tuple(part.facts for part in parts),
            tuple((r.name, r.health, r.drained, r.accepts_spill, bool(r.fault)) for r in regions),
            tried,
        )
        numbers = tuple(part.numbers for part in parts)
        old = now_s - self._published_s >= NUMBERS_EVERY_S
        if self._last is None or facts != self._facts or (old and numbers != self._numbers):
            self._generation += 1
            self._facts, self._numbers, self._published_s = facts, numbers, now_s
            targets = tuple(target for part in parts for target in part.targets)
            self._last = Snapshot(self._epoch, self._generation, targets, regions, tried=tried)
        return self._last
