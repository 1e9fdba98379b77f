"""Who serves something else than the plan says, and in what it differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_member import Member
from serve_app.core.reports import TargetReport


def drift_of(fleet: Fleet) -> list[dict[str, Any]]:
    """One row for each region whose documents differ, and each target whose release does."""
    trial = fleet.rollouts.trial()
    rows = []
    for member in fleet.members.values():
        state = member.state
        if state is None:
            continue
        if fleet.wanted.revision and state.revision != fleet.wanted.revision:
            why = f"; refused: {state.why}" if state.refused == fleet.wanted.revision else ""
            rows.append(_row(member.name, "", state.revision, fleet.wanted.revision, f"documents{why}"))
        for target in state.targets:
            due = (trial.expected if trial is not None else {}) if target.canary else fleet.planner.due
            expected = due.get((member.name, target.agent))
            if expected is not None and expected != target.release:
                what = "the engine" if _engine_differs(fleet, member, target) else "templates or routes"
                rows.append(_row(member.name, target.agent, target.release, expected, what))
    return rows


def _row(region: str, agent: str, has: str, expected: str, what: str) -> dict[str, Any]:
    return {"region": region, "agent": agent, "has": has, "expected": expected, "differs": what}


def _engine_differs(fleet: Fleet, member: Member, target: TargetReport) -> bool:
    """Whether other regions that serve the agent mostly have another engine."""
    others = Counter(
        t.engine_digest
        for m in fleet.members.values()
        if m is not member and m.state is not None
        for t in m.state.targets
        if t.agent == target.agent and not t.canary
    )
    return bool(others) and others.most_common(1)[0][0] != target.engine_digest
