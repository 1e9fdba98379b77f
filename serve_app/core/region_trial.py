"""What one region has of a release that is tried: its agents' releases, its stage, and how both releases do here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serve_app.core.reports import RouterReport
from serve_app.core.table import Agent
from serve_app.core.trial import MOST_BROKEN, NO_TRIAL, ReleaseCount, Smoke, Stage, Trial, TrialReport, Tried, added

NO_STAGE = Stage(0)


@dataclass(slots=True)
class RegionTrial:
    """``agents`` are this region's as the tried documents make them; ``fault`` is why there are none."""

    trial: Trial | None = None
    stage: Stage = NO_STAGE
    agents: Mapping[str, Agent] = field(default_factory=dict)
    fault: str = ""
    _smoke: Smoke = ""
    _why: str = ""
    _counts: Mapping[tuple[str, str], ReleaseCount] = field(default_factory=dict)
    _broken: dict[int, None] = field(default_factory=dict)
    _tried: Tried | None = None

    def take_plan(self, trial: Trial | None, stage: Stage, agents: Mapping[str, Agent], fault: str) -> None:
        """A plan's part for this region. What was counted before the last move says nothing of this one."""
        before, self.trial = self.trial, trial
        if trial is None or before is None or before.revision != trial.revision:
            self._broken = {}
        if trial is None or before is None or (before.revision, before.move) != (trial.revision, trial.move):
            self._smoke, self._why, self._counts = "", "", {}
        self.stage, self.agents, self.fault = stage, agents, fault
        self._make()

    def smoked(self, move: int, faults: Sequence[str]) -> None:
        """How the smoke tests of a move ended."""
        if self.trial is not None and self.trial.move == move:
            self._smoke, self._why = ("failed" if faults else "passed"), "; ".join(faults)

    def cannot(self, why: str) -> None:
        """The smoke tests have not run yet, and why."""
        self._why = why

    def take(self, report: RouterReport) -> None:
        """What a Router counted of both releases."""
        if self.trial is None or report.tried != self.trial.revision:
            return
        self._counts = added([*self._counts.values(), *report.counts])
        new = [place for place in report.broken if place not in self._broken]
        if new:
            self._broken.update(dict.fromkeys(new))
            for place in list(self._broken)[:-MOST_BROKEN]:
                del self._broken[place]
            self._make()

    def canary(self, agent: Agent) -> Agent | None:
        """The agent as it is tried beside ``agent``, while anybody is on it; ``None`` where both are the same."""
        tried = self.agents.get(agent.name)
        if tried is None or tried.app != agent.app or tried.release == agent.release:
            return None
        return tried if self.stage.percent else None

    @property
    def tried(self) -> Tried | None:
        """What Routers have to know, the same object until it changes."""
        return self._tried

    def _make(self) -> None:
        trial, is_on = self.trial, self.stage != NO_STAGE and not self.fault
        made = None
        if trial is not None and is_on:
            made = Tried(trial.revision, trial.data, self.stage.percent, frozenset(self._broken))
        if made != self._tried:
            self._tried = made

    def report(self) -> TrialReport:
        """For the coordinator."""
        if self.trial is None or self.stage == NO_STAGE:
            return NO_TRIAL
        if self.fault:
            return TrialReport(self.trial.revision, self.trial.move, 0, "failed", self.fault)
        counts = tuple(self._counts.values())
        return TrialReport(
            self.trial.revision, self.trial.move, self.stage.percent, self._smoke, self._why[:1000], counts
        )
