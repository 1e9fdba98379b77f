"""What an engine's replicas say of it, as one health and one load; and how a target that was out comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from serve_app.core.reports import FRESH_S, ReplicaReport, TargetReport
from serve_app.core.snapshots import Health, Load

#: For each replica that reports: more waiting than this is slow.
SLOW_WAITING: Final = 20
SLOW_FIRST_TOKEN_MS: Final = 1500.0
#: What was slow is so until it is this much below the limits: at a limit it would change with each report.
CALM_RATIO: Final = 0.75
SLOW_WEIGHT: Final = 0.3
RAMP_FROM: Final = 0.1
RAMP_S: Final = 20.0
#: Starts that failed are told for so long after the last one, if no replica has started since.
FAILED_TOLD_S: Final = 600.0
#: A replica that was silent for so long is gone, and an engine whose replicas all are comes back by the ramp.
FORGET_S: Final = 10.0
_NUMBERS: Final = tuple(field.name for field in fields(Load))


@dataclass(frozen=True, slots=True)
class Standing:
    """One engine as its replicas tell; ``replicas`` are those that give tokens.

    ``lost``: all were silent for so long that whoever reports next must be a new one. ``start_s`` is what the start of
    the last new one took.
    """

    health: Health
    why: str
    load: Load
    replicas: int
    lost: bool = False
    start_s: float | None = None


def clean(load: Load) -> Load:
    """A load without numbers that cannot be: what is negative or not finite is no data."""
    values = {name: getattr(load, name) for name in _NUMBERS}
    # What is not a number is not at least 0 either.
    odd = [name for name, value in values.items() if value is not None and not 0 <= value < math.inf]
    return replace(load, **dict.fromkeys(odd)) if odd else load


def merged(loads: Iterable[Load]) -> Load:
    """The load of a target whose replicas report these: counts add up, of percentiles the worst counts."""
    every = list(loads)

    def told(name: str) -> list[float]:
        return [value for load in every if (value := getattr(load, name)) is not None]

    def worst(name: str) -> float | None:
        return max(told(name), default=None)

    def mean(name: str) -> float | None:
        values = told(name)
        return sum(values) / len(values) if values else None

    waiting, running = told("waiting"), told("running")
    return Load(
        queue_wait_p95_ms=worst("queue_wait_p95_ms"),
        oldest_wait_ms=worst("oldest_wait_ms"),
        waiting=int(sum(waiting)) if waiting else None,
        running=int(sum(running)) if running else None,
        kv_cache_used_ratio=mean("kv_cache_used_ratio"),
        first_token_p95_ms=worst("first_token_p95_ms"),
        error_ratio=mean("error_ratio"),
    )


class Replicas:
    """The reports of one engine's replicas, each the last one of its replica, aged by their receipt."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._heard_s: float | None = None
        self._asked_s: float | None = None
        self._slow = False
        self.start_s: float | None = None
        self._failed_starts, self._why_failed, self._failed_s = 0, "", 0.0

    def take(self, report: ReplicaReport, now_s: float) -> None:
        """One push."""
        self._heard_s = now_s
        if report.replica not in self._reports:
            self._failed_starts, self.start_s = 0, report.start_s
        self._reports[report.replica] = (now_s, replace(report, load=clean(report.load)))
        for name in [n for n, (at_s, _) in self._reports.items() if now_s - at_s > FORGET_S]:
            del self._reports[name]

    def failed_start(self, why: str, now_s: float) -> None:
        """A replica ended before it ever served."""
        self._failed_starts, self._why_failed, self._failed_s = self._failed_starts + 1, why, now_s

    def failing(self, now_s: float) -> str:
        """What operators have to know of starts that failed, one after the other; empty without any."""
        if self._failed_starts == 0 or now_s - self._failed_s > FAILED_TOLD_S:
            return ""
        times = "once" if self._failed_starts == 1 else f"{self._failed_starts} times"
        return f"a replica failed to start {times}: {self._why_failed}"

    def stood_still(self, late_s: float, now_s: float) -> None:
        """Who receives the pushes did nothing for ``late_s``."""
        self._reports = {name: (min(now_s, at_s + late_s), report) for name, (at_s, report) in self._reports.items()}
        if self._heard_s is not None:
            self._heard_s = min(now_s, self._heard_s + late_s)

    def standing(self, now_s: float, *, may_sleep: bool, stale_s: float = FRESH_S) -> Standing:
        """Health and load now. ``may_sleep``: the engine may have no replicas, so that silence says nothing."""
        fresh = [report for at_s, report in self._reports.values() if now_s - at_s <= stale_s]
        if not fresh:
            self._slow = False
            if self._heard_s is None:
                return Standing("unknown", "starting: no replica has reported yet", Load(), 0)
            if may_sleep:
                return Standing("unknown", "no replica runs", Load(), 0)
            silent_s = now_s - self._heard_s
            why = f"no replica has reported for {silent_s:.1f} s"
            return Standing("stale", why, Load(), 0, lost=silent_s > FORGET_S)
        load = merged(r.load for r in fresh)
        proven = sum(r.proven for r in fresh)
        if not proven:
            self._slow = False
            return Standing("ejected", f"no token from {_counted(len(fresh))}", load, 0)
        why_slow = self._why_slow(load, proven)
        self._slow = why_slow is not None
        if why_slow is not None:
            return Standing("slow", why_slow, load, proven)
        silent = len(fresh) - proven
        return Standing("healthy", f"no token from {silent} of {_counted(len(fresh))}" if silent else "", load, proven)

    def is_idle(self, now_s: float, stale_s: float) -> bool:
        """Whether each replica says that nothing waits or runs, or none was heard for so long that none is there.

        No data is not idle: a report that is late may have work.
        """
        some = [(now_s - at_s, report.load) for at_s, report in self._reports.values() if now_s - at_s <= FORGET_S]
        if some:
            return all(age_s <= stale_s and load.waiting == 0 and load.running == 0 for age_s, load in some)
        if self._heard_s is None and self._asked_s is None:
            self._asked_s = now_s
        since_s = self._asked_s if self._heard_s is None else self._heard_s
        return since_s is not None and now_s - since_s > FORGET_S

    def _why_slow(self, load: Load, replicas: int) -> str | None:
        limit = CALM_RATIO if self._slow else 1.0
        if load.waiting is not None and load.waiting > limit * SLOW_WAITING * replicas:
            return f"{load.waiting} wait for {_counted(replicas)}"
        # With the wait for a slot in it: who is late under load gets less, whatever makes it late.
        if load.first_token_p95_ms is not None and load.first_token_p95_ms > limit * SLOW_FIRST_TOKEN_MS:
            return f"first token after {load.first_token_p95_ms:.0f} ms"
        return None


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"


def summed(reports: Sequence[TargetReport]) -> tuple[Health, str]:
    """A region's health from its targets': it is out when no engine gives tokens, slow when none is better.

    One whose reports come late may serve all the same; of one that nothing is known of, nobody has ever seen it.
    """
    if not reports:
        return "unknown", "no agent runs here"
    order: tuple[Health, ...] = ("healthy", "slow", "stale", "unknown", "ejected", "probing")
    health = next(h for h in order if any(r.health == h for r in reports))
    worse = {r.app: f"{r.app} is {r.health}: {r.why}" for r in reports if r.health != "healthy"}
    return health, "; ".join(worse.values())


class Ramp:
    """The share of its score that a target counts with: little at first after it was out, then more, then all."""

    def __init__(self) -> None:
        self._out = False
        self._worked = False
        self._back_s: float | None = None

    def out(self) -> None:
        """The target is seen to fail: whenever it is back, it comes slowly."""
        self._out, self._back_s = True, None

    def anew(self) -> None:
        """The target begins anew: slowly where another one of its name worked before, as any at the very start."""
        if self._worked:
            self.out()

    @property
    def is_rising(self) -> bool:
        """Whether time alone changes the share."""
        return self._back_s is not None

    def fit(self, now_s: float) -> float:
        """The target is seen to work; its share from ``RAMP_FROM`` to 1."""
        self._worked = True
        if self._out:
            self._out, self._back_s = False, now_s
        if self._back_s is None:
            return 1.0
        done = min(1.0, max(0.0, (now_s - self._back_s) / RAMP_S))
        if done == 1.0:
            self._back_s = None
        return RAMP_FROM + (1.0 - RAMP_FROM) * done
