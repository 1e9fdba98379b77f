"""What a drill of releases has shown: who was served which release, when, and what that breaks of the promises.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

ReleaseDrill = Literal["rollback", "bad-release"]

#: From the command until nobody is served the new release any more.
ROLLBACK_S: Final = 10.0
#: A bad release reaches at most so many regions, and this share of users.
MOST_REGIONS: Final = 1
MOST_USERS_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of the drill's stream. ``release`` is as its answer tells it, empty without one."""

    entry: str
    user: str
    began_s: float
    release: str = ""
    region: str = ""
    told: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    """The numbers of a run, in the words of its JSON. ``served_old_everywhere_s`` is ``None`` where the new release was
    served to the end."""

    drill: ReleaseDrill
    served_old_everywhere_s: float | None
    reached_regions: tuple[str, ...]
    reached_user_ratio: float
    rolled_back: bool
    requests: int
    failed_requests: int

    @property
    def json(self) -> dict[str, Any]:
        return {**asdict(self), "reached_regions": list(self.reached_regions)}


def run_of(
    drill: ReleaseDrill, answered: Sequence[Answered], old: str, back_s: float, *, rolled_back: bool
) -> ReleaseRun:
    """The numbers of a run. ``old`` is how answers of the release before begin; ``back_s`` is when the command to go
    back was given, or when a bad release began."""
    new = [a for a in answered if a.release and not old.startswith(a.release)]
    last_s = max((a.began_s for a in new), default=back_s)
    ended_old = any(a.began_s > last_s and a.release for a in answered)
    users = {a.user for a in answered}
    return ReleaseRun(
        drill=drill,
        served_old_everywhere_s=round(max(0.0, last_s - back_s), 3) if ended_old else None,
        reached_regions=tuple(sorted({a.region for a in new})),
        reached_user_ratio=round(len({a.user for a in new}) / len(users), 4) if users else 0.0,
        rolled_back=rolled_back,
        requests=len(answered),
        failed_requests=sum(not a.release for a in answered),
    )


def broken(run: ReleaseRun, answered: Sequence[Answered], regions: int) -> list[str]:
    """The promises that a run has not held; ``regions`` is how many there are."""
    faults = []
    if not run.rolled_back:
        faults.append("the release was not rolled back")
    if run.failed_requests:
        said = next(a.told for a in answered if not a.release)
        faults.append(f"{run.failed_requests} requests failed, promised none: {said}")
    if run.served_old_everywhere_s is None:
        faults.append("the new release was served to the end")
    elif run.drill == "rollback" and run.served_old_everywhere_s > ROLLBACK_S:
        faults.append(f"the old release everywhere after {run.served_old_everywhere_s} s, promised {ROLLBACK_S:g} s")
    if run.drill == "rollback":
        if len(run.reached_regions) < regions:
            faults.append(
                f"the new release reached {len(run.reached_regions)} of {regions} regions: nothing to roll back"
            )
        return faults
    if len(run.reached_regions) > MOST_REGIONS:
        faults.append(f"the bad release reached {', '.join(run.reached_regions)}, promised {MOST_REGIONS} region")
    if run.reached_user_ratio > MOST_USERS_RATIO:
        faults.append(f"the bad release reached {run.reached_user_ratio:.1%} of users, promised {MOST_USERS_RATIO:.0%}")
    return faults
