"""A rollout: one release after another through regions and shares of their users, until all have it or none.

The state is :class:`Rollout`, which is stored after every transition; the transitions are :data:`TABLE`, from which
the picture in README is drawn too. What is seen of regions is not stored: a coordinator that starts anew waits for the
hold and the sample of the current step again, so a restart can only make a rollout later, never less careful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from serve_app.core.guards import Guards, breach
from serve_app.core.trial import NO_TRIAL, ReleaseCount, Stage, TrialReport

Phase = Literal[
    "smoke",
    "canary",
    "smoke_paused",
    "canary_paused",
    "halted",
    "adopting",
    "reverting",
    "done",
    "aborted",
    "rolled_back",
]
#: ``held``: a step had its time and its sample. ``region_held``, ``all_held``: the same, of a region's last step.
#: ``failed_first``: the first region failed, so that nobody else has the release; ``failed_later``: another one.
Happening = Literal[
    "passed", "held", "region_held", "all_held", "failed_first", "failed_later", "adopted", "pause", "resume", "abort"
]

#: What follows from what, in each phase. What a phase does not name cannot happen in it, or is refused.
TABLE: Final[Mapping[Phase, Mapping[Happening, Phase]]] = {
    "smoke": {
        "passed": "canary",
        "failed_first": "rolled_back",
        "failed_later": "halted",
        "pause": "smoke_paused",
        "abort": "aborted",
    },
    "canary": {
        "held": "canary",
        "region_held": "smoke",
        "all_held": "adopting",
        "failed_first": "rolled_back",
        "failed_later": "halted",
        "pause": "canary_paused",
        "abort": "aborted",
    },
    "smoke_paused": {"resume": "smoke", "abort": "aborted"},
    "canary_paused": {
        "resume": "canary",
        "failed_first": "rolled_back",
        "failed_later": "halted",
        "abort": "aborted",
    },
    "halted": {"resume": "smoke", "abort": "aborted"},
    "adopting": {"adopted": "done", "abort": "reverting"},
    "reverting": {"adopted": "aborted"},
    "done": {},
    "aborted": {},
    "rolled_back": {},
}
ENDED: Final = frozenset(phase for phase, row in TABLE.items() if not row)
ROLE_ORDER: Final = ("edge", "secondary", "primary")


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How careful a rollout is. Steps are percent of users, the last is 100.

    A step ends when ``hold_s`` have passed and ``min_samples`` requests were answered by the new release; one that
    does not end within ``patience_s`` fails.
    """

    steps: tuple[int, ...] = (5, 20, 50, 100)
    hold_s: float = 600.0
    min_samples: int = 50
    patience_s: float = 3600.0
    guards: Guards = field(default_factory=Guards)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Everything of a rollout that is stored.

    ``agents`` has the releases before and after by agent. ``documents`` are whole sets as JSON text: those that are
    rolled out, and those ``before``. ``engines`` are the engine digests that regions reported when it began, by agent.
    ``region`` and ``step`` are places in ``regions`` and ``policy.steps``. ``baseline`` is how the release before did
    in the steps where it was still asked. ``is_back``: a rollback, which begins where others end.
    """

    revision: str
    who: str
    began_unix_s: float
    agents: Mapping[str, tuple[str, str]]
    regions: tuple[str, ...]
    policy: RolloutPolicy
    documents: str
    before: str
    engines: Mapping[str, str] = field(default_factory=dict)
    phase: Phase = "smoke"
    region: int = 0
    step: int = 0
    move: int = 1
    why: str = ""
    baseline: ReleaseCount | None = None
    is_back: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase in ENDED

    @property
    def is_settling(self) -> bool:
        """Whether every region is to have one release, and it is waited until each has its documents in force."""
        return self.phase in ("adopting", "reverting")

    @property
    def goes_back(self) -> bool:
        """Whether every region is on its way to the release that it had before."""
        return self.phase == ("adopting" if self.is_back else "reverting")

    @property
    def current(self) -> str:
        """The region whose turn it is."""
        return self.regions[self.region]

    def stages(self) -> dict[str, Stage]:
        """What each region does; one that is not named serves the release before alone."""
        if self.is_over:
            return {}
        if self.is_settling:
            return dict.fromkeys(self.regions, Stage(100))
        stages = dict.fromkeys(self.regions[: self.region], Stage(100))
        if self.phase == "smoke":
            stages[self.current] = Stage(0, smoke=True)
        elif self.phase in ("canary", "canary_paused"):
            stages[self.current] = Stage(self.policy.steps[self.step])
        return stages


@dataclass(frozen=True, slots=True)
class Sight:
    """One region as the coordinator sees it now. ``has_it``: the documents to settle on are in force there."""

    linked: bool
    drained: bool = False
    has_it: bool = False
    trial: TrialReport = NO_TRIAL


class Unfit(Exception):
    """What an operator asks for cannot be done in this phase."""


def after(rollout: Rollout, happening: Happening, why: str = "") -> Rollout:
    """The rollout after what happened.

    Raises:
        Unfit: when that is nothing for this phase, naming what is.
    """
    row = TABLE[rollout.phase]
    if happening not in row:
        allowed = ", ".join(h for h in row if h in ("pause", "resume", "abort")) or "nothing"
        raise Unfit(f"rollout {rollout.revision} is {rollout.phase.replace('_', ' ')}; allowed now: {allowed}")
    phase, region, step = row[happening], rollout.region, rollout.step
    if happening == "held":
        step += 1
    elif happening == "region_held":
        region, step = region + 1, 0
    elif phase == "smoke" and rollout.phase == "halted":
        step = 0
    if not why and rollout.is_settling:
        # Why all regions are to have one release is why they have it.
        why = rollout.why
    return replace(rollout, phase=phase, region=region, step=step, move=rollout.move + 1, why=why)


@dataclass(slots=True)
class Driver:
    """Moves one rollout on. ``since_s`` is when its last transition was, or this coordinator's start."""

    rollout: Rollout
    since_s: float
    #: What the current step waits for, for people.
    waits: str = ""

    def steer(self, happening: Literal["pause", "resume", "abort"], who: str, now_s: float) -> Rollout:
        """An operator's word.

        Raises:
            Unfit: nothing for this phase.
        """
        return self._to(after(self.rollout, happening, f"{happening} by {who}"), now_s)

    def look(self, sights: Mapping[str, Sight], now_s: float) -> Rollout | None:
        """The rollout after what is seen now; ``None``: as it was."""
        rollout, found = self.rollout, None
        if rollout.is_settling:
            found = self._settled(sights)
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
        self.rollout, self.since_s, self.waits = made, now_s, ""
        return made

    def _settled(self, sights: Mapping[str, Sight]) -> tuple[Happening, str] | None:
        """A region that is away takes the documents when it is back: its plan names nothing else."""
        late = sorted(n for n in self.rollout.regions if n in sights and sights[n].linked and not sights[n].has_it)
        self.waits = f"documents are not in force yet in {', '.join(late)}" if late else ""
        there = any(sight.linked for sight in sights.values())
        return None if late or not there else ("adopted", "")

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
