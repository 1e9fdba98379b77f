"""Moves a rollout on, by what is seen of regions and by what operators say.

What is seen of regions is not stored: a coordinator that starts anew waits for the hold and the sample of the current
step again, so a restart can only make a rollout later, never less careful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from serve_app.core.guards import breach
from serve_app.core.rollout import Happening, Rollout, after
from serve_app.core.trial import NO_TRIAL, ReleaseCount, TrialReport


@dataclass(frozen=True, slots=True)
class Sight:
    """One region as the coordinator sees it now. ``has_it``: the documents to settle on are in force there; ``why``:
    what keeps them from it, as far as the region says it."""

    linked: bool
    drained: bool = False
    has_it: bool = False
    trial: TrialReport = NO_TRIAL
    why: str = ""


@dataclass(slots=True)
class Driver:
    """Moves one rollout on. ``since_s`` is when its last transition was, or this coordinator's start."""

    rollout: Rollout
    since_s: float
    #: What the current step waits for, for people.
    waits: str = ""
    #: Whether a region does not put the documents to settle on in force, in all the time that it has for it.
    is_late: bool = False

    def steer(self, happening: Literal["pause", "resume", "abort", "replaced"], who: str, now_s: float) -> Rollout:
        """An operator's word.

        Raises:
            Unfit: nothing for this phase.
        """
        return self._to(after(self.rollout, happening, f"{happening} by {who}"), now_s)

    def look(self, sights: Mapping[str, Sight], now_s: float) -> Rollout | None:
        """The rollout after what is seen now; ``None``: as it was."""
        rollout, found = self.rollout, None
        if rollout.is_settling:
            found = self._settled(sights, now_s)
        elif rollout.phase in ("smoke", "canary", "canary_paused"):
            found = self._judged(sights.get(rollout.current), now_s)
        if found is None:
            return None
        happening, why = found
        made = after(rollout, happening, why)
        if happening in ("held", "region_held"):
            made = replace(made, baseline=self._old(sights[rollout.current].trial) or rollout.baseline)
        return self._to(made, now_s)

    def _to(self, made: Rollout, now_s: float) -> Rollout:
        self.rollout, self.since_s, self.waits, self.is_late = made, now_s, "", False
        return made

    def _settled(self, sights: Mapping[str, Sight], now_s: float) -> tuple[Happening, str] | None:
        """A region that is away takes the documents when it is back: its plan names nothing else.

        For one that is there and does not take them a release goes back. What goes back already stays as it is, with
        the users of that region on the release before; other documents may then be applied.
        """
        rollout, there = self.rollout, {name: sight for name, sight in sights.items() if sight.linked}
        late = [
            _said(name, there[name]) for name in sorted(rollout.regions) if name in there and not there[name].has_it
        ]
        self.is_late = bool(late) and now_s - self.since_s > rollout.policy.patience_s
        self.waits = f"documents are not in force yet in {', '.join(late)}" if late else ""
        if not late:
            return ("adopted", "") if there else None
        if not self.is_late or rollout.is_back or rollout.phase == "reverting":
            return None
        return ("late", f"not in force after {rollout.policy.patience_s:g} s in {', '.join(late)}")

    def _judged(self, sight: Sight | None, now_s: float) -> tuple[Happening, str] | None:
        rollout = self.rollout
        if sight is None:
            return self._failed(f"{rollout.current} is no longer in the federation")
        trial, is_now = sight.trial, sight.linked and self._is_now(sight.trial)
        if is_now and (fault := self._fault(trial)):
            return self._failed(fault)
        if rollout.phase == "canary_paused":
            return None
        if is_now and rollout.phase == "smoke" and trial.smoke == "passed":
            return ("passed", "")
        if is_now and rollout.phase == "canary" and self._is_held(trial, sight.drained, now_s):
            return self._held()
        if not is_now:
            self.waits = f"{rollout.current} " + ("has not taken this step yet" if sight.linked else "is not linked")
        elif rollout.phase == "smoke":
            self.waits = "smoke tests run"
        if now_s - self.since_s > rollout.policy.patience_s:
            return self._failed(f"not done after {rollout.policy.patience_s:g} s: {self.waits}")
        return None

    def _is_now(self, trial: TrialReport) -> bool:
        return (trial.revision, trial.move) == (self.rollout.revision, self.rollout.move)

    def _fault(self, trial: TrialReport) -> str:
        """Why the release is not fit for the region whose turn it is; empty where nothing speaks against it."""
        if self.rollout.phase == "smoke":
            return f"smoke tests: {trial.why}" if trial.smoke == "failed" else ""
        if trial.smoke == "failed":
            # After its tests a region fails so only when it can no longer make the release at all.
            return trial.why
        old = self._old(trial) or self.rollout.baseline
        policy = self.rollout.policy
        return breach(policy.guards, old, self._new(trial), policy.min_samples)

    def _old(self, trial: TrialReport) -> ReleaseCount | None:
        """How the release before did in this step, where it was asked often enough."""
        found = self._sum(trial, 0)
        return found if found.requests >= self.rollout.policy.min_samples else None

    def _new(self, trial: TrialReport) -> ReleaseCount:
        return self._sum(trial, 1)

    def _sum(self, trial: TrialReport, which: Literal[0, 1]) -> ReleaseCount:
        """All agents that change, together: each alone may be asked too seldom."""
        names = {(agent, releases[which]) for agent, releases in self.rollout.agents.items()}
        total = ReleaseCount("", "")
        for count in trial.counts:
            if (count.agent, count.release) in names:
                total = total.plus(count)
        return total

    def _is_held(self, trial: TrialReport, drained: bool, now_s: float) -> bool:
        policy = self.rollout.policy
        left_s, asked = policy.hold_s - (now_s - self.since_s), self._new(trial).requests
        # A region that is drained is asked by nobody: there is no sample to wait for, and nobody to harm.
        lacks = 0 if drained else policy.min_samples - asked
        said = [f"{left_s:.0f} s of its hold"] if left_s > 0 else []
        said += [f"{lacks} of {policy.min_samples} requests"] if lacks > 0 else []
        self.waits = " and ".join(said)
        return not said

    def _held(self) -> tuple[Happening, str]:
        rollout = self.rollout
        if rollout.step + 1 < len(rollout.policy.steps):
            return ("held", "")
        return ("region_held" if rollout.region + 1 < len(rollout.regions) else "all_held", "")

    def _failed(self, why: str) -> tuple[Happening, str]:
        return ("failed_first" if self.rollout.region == 0 else "failed_later", f"{self.rollout.current}: {why}")


def _said(region: str, sight: Sight) -> str:
    return f"{region} ({sight.why})" if sight.why else region
