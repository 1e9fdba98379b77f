"""The scaling policy as Ray Serve loads it: Serve's numbers in, ``decide``, replicas out.

It runs inside Serve's controller, ten times a second, for every agent. One policy that raises there stops scaling and
updates of all applications, and one that blocks delays them: so this one does neither, whatever it is given.

What an operator may change comes as numbers from the replicas, which take it in place as ``user_config``; a change of
the policy's own arguments would restart each of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, get_args

from autoscale.queue_latency import LoadSnapshot, Memory, Reason, ReplicaLoad, ScaleDecision, ScaleParameters, decide
from serve_app.core.names import agent_of
from serve_app.edge.serve_metrics import ServeMeter
from serve_app.metrics import SCALING

log = logging.getLogger("ray.serve")

#: Of a replica's numbers, those that are settings.
SETTING: Final = "set_"
#: Of a replica's numbers, its work that is no request to it.
UNCOUNTED: Final = "uncounted_requests"
#: A report whose age by wall clocks is more is not believed until the next one comes.
FIRST_S: Final = 5.0
#: Two looks are a tenth of a second apart: when the wall clock moves so much more or less, it was set.
CLOCK_STEP_S: Final = 1.0
#: Gauges are told again so often, or they would fade.
TELL_S: Final = 5.0
FAULT_TOLD_S: Final = 60.0

#: ``fault``: Serve's numbers could not be read. ``clock_step``: the wall clock was set, and quiet begins again.
REASONS: Final = (*get_args(Reason), "fault", "clock_step")

_LOADS: Final = frozenset(f.name for f in fields(ReplicaLoad)) - {"age_s"}
_SETTINGS: Final = frozenset(f.name for f in fields(ScaleParameters)) - {"min_replicas", "max_replicas"}


class Meter(Protocol):
    """Where decisions are exported."""

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None: ...
    def set(self, name: str, labels: Mapping[str, str], value: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Told:
    """The last numbers of one replica, and how long ago they came."""

    numbers: Mapping[str, float]
    age_s: float


class _Reports:
    """Ages replicas' reports by when they came here: clocks of two machines may disagree, and be set."""

    def __init__(self) -> None:
        #: By replica: the time it wrote on its last report, and when that was first seen; ``None``: it was old then.
        self._seen: dict[Any, tuple[float, float | None]] = {}

    def read(
        self, raw: Mapping[str, Mapping[Any, Sequence[Any]]], now_s: float, now_unix_s: float
    ) -> Iterator[tuple[Any, _Told]]:
        """Each replica's last numbers. A key that its last report did not have is old, and left out."""
        series: dict[Any, dict[str, Any]] = {}
        for name, by_replica in raw.items():
            for one, points in by_replica.items():
                if points:
                    series.setdefault(one, {})[name] = points[-1]
        self._seen = {one: seen for one, seen in self._seen.items() if one in series}
        for one, last in series.items():
            written_s = max(point.timestamp for point in last.values())
            came_s = self._came_s(one, written_s, now_s, now_unix_s)
            if came_s is not None:
                numbers = {name: float(p.value) for name, p in last.items() if p.timestamp == written_s}
                yield one, _Told(numbers, now_s - came_s)

    def _came_s(self, one: Any, written_s: float, now_s: float, now_unix_s: float) -> float | None:
        if one not in self._seen:
            age_s = now_unix_s - written_s
            self._seen[one] = (written_s, now_s - max(0.0, age_s) if abs(age_s) <= FIRST_S else None)
        elif self._seen[one][0] != written_s:
            self._seen[one] = (written_s, now_s)
        return self._seen[one][1]


class QueueLatencyPolicy:
    """One agent's policy. ``region`` only labels what it exports.

    ``unknown`` can only come from a rendered config that somebody has edited: no document has a place for them, and
    what Serve itself checks of them when a config is put is that they are JSON. Serve makes this object in its
    controller's loop, where an error would stop scaling and updates of all applications, so that they cannot be
    refused here: they are logged and left out. In a region with a coordinator the edited config is put back.
    """

    def __init__(
        self,
        region: str = "",
        *,
        meter: Meter | None = None,
        now_s: Callable[[], float] = time.monotonic,
        **unknown: object,
    ) -> None:
        self._region, self._now_s = str(region), now_s
        self._exports = _Exports(meter)
        self._reports, self._memory = _Reports(), Memory()
        self._settings: dict[str, float] | None = None
        self._offset_s: float | None = None
        self._held_at = 1
        self._fault_told_s = -math.inf
        if unknown:
            log.error("the scaling policy takes region only, and goes on without: %s", ", ".join(sorted(unknown)))

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Replicas that are wanted, and no state for Serve to keep."""
        try:
            replicas, reason = self._decided(context)
        except Exception:
            self._told_fault("the scaling policy holds: it cannot read what Serve says")
            target = getattr(context, "target_num_replicas", None)
            replicas, reason = target if isinstance(target, int) else self._held_at, "fault"
        self._held_at = replicas
        try:
            agent = agent_of(str(context.app_name))
            above_ms = (self._settings or {}).get("queue_above_ms")
            self._exports.tell(self._region, agent, replicas, reason, above_ms, self._now_s())
        except Exception:
            self._told_fault("scaling decisions cannot be exported")
        return replicas, {}

    def _decided(self, context: Any) -> tuple[int, str]:
        now_s, now_unix_s = self._now_s(), float(context.current_time)
        told = [one for _, one in self._reports.read(context.raw_metrics or {}, now_s, now_unix_s)]
        load = LoadSnapshot(
            now_s=now_s,
            running_replicas=int(context.current_num_replicas),
            target_replicas=int(context.target_num_replicas),
            ongoing_requests=_ongoing(context, told),
            queued_requests=_float(context.total_queued_requests),
            replicas=tuple(_load(one) for one in told),
        )
        decision = decide(load, self._parameters(context, told), self._memory)
        return self._held(decision, load.target_replicas, now_unix_s - now_s)

    def _held(self, decision: ScaleDecision, target: int, offset_s: float) -> tuple[int, str]:
        """The decision, unless the wall clock was just set: Serve counts quiet by it, and has to begin again."""
        stepped = self._offset_s is not None and abs(offset_s - self._offset_s) > CLOCK_STEP_S
        self._offset_s, self._memory = offset_s, decision.memory
        if stepped and decision.replicas < target:
            self._memory = replace(decision.memory, quiet_target=None)
            return target, "clock_step"
        return decision.replicas, decision.reason

    def _parameters(self, context: Any, told: Sequence[_Told]) -> ScaleParameters:
        """From the newest report that has settings; the last known ones without; no trigger before the first."""
        most = max(1, int(context.capacity_adjusted_max_replicas))
        bounds = {"min_replicas": min(most, max(0, int(context.capacity_adjusted_min_replicas))), "max_replicas": most}
        for one in sorted(told, key=lambda t: t.age_s):
            found = {n.removeprefix(SETTING): v for n, v in one.numbers.items() if n.startswith(SETTING)}
            if found and found != self._settings:
                try:
                    _parameters(found, bounds)
                except (ValueError, TypeError, OverflowError) as error:
                    self._told_fault("a replica tells settings that cannot be: %s", error)
                    continue
                self._settings = found
            if found:
                break
        slots = float(context.config.get_target_ongoing_requests())
        return _parameters({"slots_per_replica": slots} if self._settings is None else self._settings, bounds)

    def _told_fault(self, message: str, *args: object) -> None:
        now_s = self._now_s()
        if now_s - self._fault_told_s >= FAULT_TOLD_S:
            self._fault_told_s = now_s
            log.error(message, *args, exc_info=not args)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _ongoing(context: Any, told: Sequence[_Told]) -> float | None:
    """What Serve counts, and what replicas say that it cannot see: task workers are called by nobody."""
    counted = _float(context.total_num_requests)
    return None if counted is None else counted + sum(one.numbers.get(UNCOUNTED, 0.0) for one in told)


def _load(told: _Told) -> ReplicaLoad:
    return ReplicaLoad(age_s=told.age_s, **{name: told.numbers[name] for name in _LOADS & told.numbers.keys()})


def _parameters(settings: Mapping[str, float], bounds: Mapping[str, int]) -> ScaleParameters:
    """A trigger that is not among the settings is not there."""
    triggers = {"queue_above_ms": None, "queue_below_ms": None, "kv_above_ratio": None, "kv_below_ratio": None}
    known: dict[str, Any] = {**triggers, **{name: settings[name] for name in _SETTINGS & settings.keys()}}
    known["slots_per_replica"] = int(known["slots_per_replica"])
    return ScaleParameters(**known, **bounds)


class _Exports:
    """The last decision as metrics: how many are wanted, why, above which wait, and for how long all has been quiet."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._last: tuple[int, str] | None = None
        self._told_s = -math.inf
        self._quiet_since_s: float | None = None

    def tell(self, region: str, agent: str, replicas: int, reason: str, above_ms: float | None, now_s: float) -> None:
        if reason != "quiet":
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now_s
        before, self._last = self._last, (replicas, reason)
        if before == self._last and now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        if self._meter is None:
            self._meter = ServeMeter(SCALING)
        labels = {"region": region, "agent": agent}
        if before is not None and before[0] != replicas:
            self._meter.add("grix_scale_changes_total", {**labels, "reason": reason}, 1.0)
        self._meter.set("grix_scale_wanted_replicas", labels, float(replicas))
        self._meter.set("grix_scale_above_ms", labels, above_ms or 0.0)
        since_s = self._quiet_since_s
        self._meter.set("grix_scale_quiet_s", labels, 0.0 if since_s is None else now_s - since_s)
        for one in REASONS:
            self._meter.set("grix_scale_reason", {**labels, "reason": one}, float(one == reason))
