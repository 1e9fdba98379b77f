"""What a drill has shown: from requests and pictures of the fleet, each with its time, to numbers and broken promises.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

Drill = Literal[
    "kill-region",
    "partition",
    "half-partition",
    "stall",
    "slow",
    "kill-coordinator",
    "kill-replica",
    "bad-cert",
]
#: Who noticed first: a peer's beats (or what a region says of itself in them), the region's own calls, the coordinator.
Detector = Literal["peer", "passive", "coordinator"]
#: ``refused``: a whole error answer. ``broken``: after the first byte, with an error in the stream. ``cut``: after the
#: first byte, without one. ``hung``: no end within the client's patience. ``lost``: the entry itself was gone.
Ending = Literal["whole", "refused", "broken", "cut", "hung", "lost"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the drill's stream, as its client and its entry saw it.

    ``first_s`` is when the first byte of an answer came. ``retried``: its entry had to try more than one target.
    """

    entry: str
    began_s: float
    ended_s: float
    ending: Ending
    first_s: float | None = None
    retried: bool = False
    told: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """The region's target that the drill's requests want, as a region that survives sees it at one moment.

    ``weight`` is ``None`` without a target, and of one that is a backup only. ``out``: no request is sent there.
    """

    at_s: float
    out: bool
    slow: bool = False
    weight: float | None = None
    detector: Detector | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """When the fault began, when its removal began, and when all was there again."""

    fault_s: float
    restore_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The numbers of one run. Those in seconds are ``None`` where the drill has nothing of the kind.

    ``requests`` entered at a region that was there; the tries whose entry was lost are counted apart.
    """

    detected_s: float | None
    detector: Detector | None
    failover_s: float
    recovered_s: float | None
    requests: int
    lost_entry: int
    failed_before_first_byte: int
    failed_mid_stream: int
    hung: int


@dataclass(frozen=True, slots=True)
class Promise:
    """What a drill has to hold. ``None``: nothing is promised.

    ``ejects``: whether the region is taken out (``False``: it must not be; ``None``: either is right).
    """

    ejects: bool | None
    detected_s: float | None = None
    failover_p95_s: float | None = None
    failover_s: float | None = 10.0
    recovered_s: float | None = None
    failed_mid_stream: int | None = None
    lost_entry: bool = False
    becomes_slow: bool = False


RECOVERED_S: Final = 30.0
#: Who waits longer than this for a first byte while a fault is there was disturbed by it, tried again or not.
LATE_S: Final = 3.0
PROMISES: Final[Mapping[Drill, Promise]] = {
    "kill-region": Promise(True, failover_p95_s=3.0, recovered_s=RECOVERED_S, lost_entry=True),
    "partition": Promise(True, failover_p95_s=3.0, recovered_s=RECOVERED_S),
    "half-partition": Promise(False, failed_mid_stream=0),
    "stall": Promise(True, detected_s=5.0, recovered_s=RECOVERED_S),
    # It goes on answering, late, for as long as it is made slow: nothing fails over.
    "slow": Promise(False, failover_s=None, failed_mid_stream=0, becomes_slow=True),
    "kill-coordinator": Promise(False, failed_mid_stream=0),
    "kill-replica": Promise(None),
    "bad-cert": Promise(True, recovered_s=RECOVERED_S),
}


def promise_of(drill: Drill, *, restored: bool = True) -> Promise:
    """What a drill has to hold; of a world that is left as it is nobody expects that it recovers."""
    return PROMISES[drill] if restored else replace(PROMISES[drill], recovered_s=None)


def run_of(promise: Promise, asked: Sequence[Asked], sights: Sequence[Sight], times: Times) -> Run:
    """The numbers of one run."""
    detected = _detected(sights, times, slow=promise.becomes_slow)
    entered = [a for a in asked if a.ending != "lost"]
    return Run(
        detected_s=None if detected is None else _rounded(detected.at_s - times.fault_s),
        detector=None if detected is None else detected.detector,
        failover_s=_failover_s(entered, times),
        recovered_s=_recovered_s(sights, times) if promise.recovered_s is not None else None,
        requests=len(entered),
        lost_entry=len(asked) - len(entered),
        failed_before_first_byte=sum(a.ending == "refused" for a in entered),
        failed_mid_stream=sum(a.ending in ("broken", "cut") for a in entered),
        hung=sum(a.ending == "hung" for a in entered),
    )


def _rounded(value_s: float) -> float:
    return round(max(0.0, value_s), 3)


def _detected(sights: Sequence[Sight], times: Times, *, slow: bool) -> Sight | None:
    seen = (s for s in sights if s.at_s >= times.fault_s and (s.out or (slow and s.slow)))
    return next(seen, None)


def _failover_s(entered: Iterable[Asked], times: Times) -> float:
    """From the fault until every request was served again: the last one that the fault had disturbed.

    A disturbed one had to be tried again, failed, or waited too long; it is over with its first byte, or with its end
    where none came. Zero when nobody was disturbed.
    """
    disturbed = [
        _served_s(a)
        for a in entered
        if a.began_s < times.restore_s and a.ended_s >= times.fault_s and (_has_failed_once(a) or _waited(a, times))
    ]
    return _rounded(max(disturbed, default=times.fault_s) - times.fault_s)


def _served_s(asked: Asked) -> float:
    return asked.first_s if asked.first_s is not None and asked.ending == "whole" else asked.ended_s


def _has_failed_once(asked: Asked) -> bool:
    return asked.retried or asked.ending != "whole"


def _waited(asked: Asked, times: Times) -> bool:
    """A wait that was over before the fault was not the fault's."""
    served_s = _served_s(asked)
    return served_s >= times.fault_s and served_s - asked.began_s > LATE_S


def _recovered_s(sights: Sequence[Sight], times: Times) -> float | None:
    """From the first passed probe, the first sight that has it back, to full weight for good; ``None``: not so."""
    after = [s for s in sights if s.at_s >= times.restore_s]
    began = next((s for s in after if _is_back(s)), None)
    if began is None:
        return None
    full = [s.at_s for s in after if s.at_s >= began.at_s and (s.weight is not None and s.weight >= 1.0) and not s.out]
    return _rounded(full[0] - began.at_s) if full else None


def _is_back(sight: Sight) -> bool:
    return not sight.out and sight.weight is not None


def broken(promise: Promise, run: Run, asked: Sequence[Asked], sights: Sequence[Sight], times: Times) -> list[str]:
    """What one run has not held, in words; how often a failover is late is judged over all runs."""
    faults = []
    if promise.ejects and run.detected_s is None:
        faults.append("nobody noticed the fault")
    if promise.becomes_slow and run.detected_s is None:
        faults.append("nobody noticed that the region was slow")
    if promise.ejects is False and any(s.out for s in sights if s.at_s >= times.fault_s):
        faults.append("the region was taken out, though it could serve")
    if promise.detected_s is not None and (run.detected_s or 0.0) > promise.detected_s:
        faults.append(f"noticed after {run.detected_s} s, promised {promise.detected_s:g} s")
    if promise.failover_s is not None and run.failover_s > promise.failover_s:
        faults.append(f"served again after {run.failover_s} s, promised {promise.failover_s:g} s always")
    if run.lost_entry and not promise.lost_entry:
        faults.append(f"{run.lost_entry} requests lost their entry, though every entry was there")
    if run.failed_before_first_byte:
        said = next(a.told for a in asked if a.ending == "refused")
        faults.append(f"{run.failed_before_first_byte} requests failed without a first byte, promised none: {said}")
    if promise.failed_mid_stream is not None and run.failed_mid_stream > promise.failed_mid_stream:
        faults.append(f"{run.failed_mid_stream} requests failed mid-stream, promised {promise.failed_mid_stream}")
    cut = sum(a.ending == "cut" for a in asked)
    if cut:
        faults.append(f"{cut} streams ended without an error in them")
    if run.hung:
        faults.append(f"{run.hung} requests hung")
    return faults + _recovery_faults(promise, run, sights, times)


def _recovery_faults(promise: Promise, run: Run, sights: Sequence[Sight], times: Times) -> list[str]:
    if promise.recovered_s is None:
        return []
    if run.recovered_s is None:
        return ["the region did not come back to its full share"]
    faults = []
    if run.recovered_s > promise.recovered_s:
        faults.append(f"full share after {run.recovered_s} s, promised {promise.recovered_s:g} s")
    after = [s for s in sights if s.at_s >= times.restore_s]
    back_s = next(s.at_s for s in after if _is_back(s))
    again = [s for s in after if s.at_s > back_s and s.out]
    if again:
        faults.append(f"the region failed a second time, {again[0].at_s - back_s:.1f} s after it was back")
    if run.detected_s is not None and run.recovered_s == 0.0:
        faults.append("the region came back with its full share at once, without a ramp")
    return faults


def percentile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank; ``None`` of nothing."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None


def report(drill: Drill, region: str, runs: Sequence[Run]) -> dict[str, Any]:
    """All runs as JSON."""
    failovers = [run.failover_s for run in runs]
    shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    spread = {name: percentile(failovers, share) for name, share in shares.items()}
    return {"drill": drill, "region": region, "runs": [asdict(run) for run in runs], "failover_s": spread}


def late(drill: Drill, runs: Sequence[Run]) -> list[str]:
    """What is promised of all runs together."""
    limit_s = PROMISES[drill].failover_p95_s
    found_s = percentile([run.failover_s for run in runs], 0.95)
    if limit_s is None or found_s is None or found_s <= limit_s:
        return []
    return [f"served again within {found_s} s at p95, promised {limit_s:g} s"]
