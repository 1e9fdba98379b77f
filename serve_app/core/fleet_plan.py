"""The plan that regions are told, from what the coordinator knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_app.core.fleet_events import Facts, Wanted
from serve_app.core.fleet_member import Member
from serve_app.core.reports import Plan
from serve_app.core.trial import Trial


@dataclass(slots=True)
class Planner:
    """``due`` is what regions have to serve that say they run the wanted revision."""

    due: Mapping[tuple[str, str], str] = field(default_factory=dict)
    _due_of: tuple[Wanted | None, frozenset[str]] = (None, frozenset())

    def plan(
        self, facts: Facts, generation: int, members: Mapping[str, Member], wanted: Wanted, trial: Trial | None
    ) -> Plan:
        return Plan(
            epoch=facts.epoch,
            generation=generation,
            regions=tuple(m.shown for m in members.values()),
            revision=wanted.revision,
            documents=wanted.documents,
            expected=self._expected(members, wanted),
            trial=trial,
        )

    def _expected(self, members: Mapping[str, Member], wanted: Wanted) -> Mapping[tuple[str, str], str]:
        """One that still puts the documents in force has not drifted."""
        on = frozenset(m.name for m in members.values() if m.state and m.state.revision == wanted.revision)
        if self._due_of != (wanted, on):
            self._due_of = (wanted, on)
            self.due = {key: release for key, release in wanted.expected.items() if key[0] in on}
        return self.due
