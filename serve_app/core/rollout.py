"""A rollout: one release after another through regions and shares of their users, until all have it or none.

The state is :class:`Rollout`, which is stored after every transition; the transitions are :data:`TABLE`, from which
the picture in README is drawn too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from serve_app.core.guards import Guards
from serve_app.core.trial import ReleaseCount, Stage

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
#: ``late``: a region does not put the documents in force; ``replaced``: others were applied, because of such a region.
Happening = Literal[
    "passed",
    "held",
    "region_held",
    "all_held",
    "failed_first",
    "failed_later",
    "adopted",
    "late",
    "replaced",
    "pause",
    "resume",
    "abort",
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
    "adopting": {"adopted": "done", "late": "reverting", "replaced": "aborted", "abort": "reverting"},
    "reverting": {"adopted": "aborted", "replaced": "aborted"},
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
    if rollout.is_settling:
        # Why all regions are to have one release is why they have it.
        why = "; ".join(part for part in (rollout.why, why) if part)
    return replace(rollout, phase=phase, region=region, step=step, move=rollout.move + 1, why=why)
