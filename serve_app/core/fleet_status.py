"""The fleet as operators read it: plain JSON of everything the coordinator knows now."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_member import Member
from serve_app.core.reports import TargetReport
from serve_app.core.snapshots import Load

# Written out by name: a large fleet has thousands of targets, and ``asdict`` would copy each value deeply.
_TARGET: Final = tuple(f.name for f in fields(TargetReport) if f.name != "load")
_LOAD: Final = tuple(f.name for f in fields(Load))


def status_of(fleet: Fleet, now_s: float) -> dict[str, Any]:
    """What ``grix status`` shows. Ages are seconds ago; ``None`` is "never" or "no data"."""
    return {
        "epoch": fleet.facts.epoch,
        "generation": fleet.generation,
        "revision": fleet.wanted.revision,
        "sending": fleet.sending,
        "began_s_ago": _ago_s(fleet.began_s, now_s),
        "held": [{"agent": needs.agent, "unmet": list(faults)} for needs, faults in fleet.unmet(now_s)],
        "regions": [_region(fleet, m, now_s) for m in fleet.members.values()],
    }


def _ago_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(now_s - at_s, 2)


def _region(fleet: Fleet, member: Member, now_s: float) -> dict[str, Any]:
    state, shown = member.state, member.shown
    return {
        "name": member.name,
        "phase": shown.phase,
        # The plan says why it turned; operators want to know what is so now.
        "why": member.judge(fleet.wanted, now_s)[1],
        "drained": shown.drained,
        "drained_by": member.drained_by,
        "accepts_spill": shown.accepts_spill,
        "linked": member.link is not None,
        "heard_s_ago": _ago_s(member.heard_s, now_s),
        "seen": list(member.seen),
        "health": None if state is None else state.health,
        "state_why": "" if state is None else state.why,
        "revision": "" if state is None else state.revision,
        "refused": "" if state is None else state.refused,
        "spilled_rps": {} if state is None else dict(state.spilled_rps),
        "targets": [] if state is None else [_target(fleet, member.name, t) for t in state.targets],
        "nodes": [asdict(n) for n in member.nodes],
        "peers": [
            {"region": p.region, "silent_s": p.silent_s, "network_ms": p.network_ms, "fault": p.fault}
            for p in member.peers
        ],
    }


def _target(fleet: Fleet, region: str, target: TargetReport) -> dict[str, Any]:
    expected = fleet.planner.due.get((region, target.agent))
    return {
        **{name: getattr(target, name) for name in _TARGET},
        "load": {name: getattr(target.load, name) for name in _LOAD},
        "expected": expected,
        "drifted": expected is not None and expected != target.release,
    }
