"""Which engines start in vain: their replicas find room and never get ready, so that room helps none of their users."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

#: So many starts that fail one after the other, none getting ready, are no accident.
FAILED_STARTS: Final = 3
#: A start that does not even fail is given so many times its limit.
OVERDUE_RATIO: Final = 2.0
#: Looks are closer together than this; what was not looked at for longer does not count as time of a start.
_GAP_S: Final = 10.0


@dataclass(slots=True)
class _Trial:
    """What was seen of one engine's starts since a replica of it got ready."""

    runs: Any = None
    ready: frozenset[str] = frozenset()
    failed: set[str] = field(default_factory=set)
    starting_s: float = 0.0
    seen_s: float = 0.0


class VainStarts:
    """Events in; the answer for each engine at each look. What waits for room does not start."""

    def __init__(self) -> None:
        self._trials: dict[str, _Trial] = {}

    def failed(self, app: str, replica: str) -> None:
        """A replica of this application has ended before it was ready."""
        self._trials.setdefault(app, _Trial()).failed.add(replica)

    def looked(
        self, app: str, runs: Any, ready: frozenset[str], is_starting: bool, limit_s: float, now_s: float
    ) -> bool:
        """Whether it starts in vain.

        ``runs`` is what a replica is started with: with something else it is tried anew. ``ready`` are the replicas
        that serve, ``is_starting``: one has a node and does not serve yet. ``limit_s`` is the limit of a start.
        """
        trial = self._trials.setdefault(app, _Trial())
        if trial.runs != runs or not ready <= trial.ready:
            trial.failed.clear()
            trial.starting_s = 0.0
        elif is_starting:
            trial.starting_s += min(now_s - trial.seen_s, _GAP_S)
        trial.runs, trial.ready, trial.seen_s = runs, ready, now_s
        return len(trial.failed) >= FAILED_STARTS or trial.starting_s > OVERDUE_RATIO * limit_s

    def retain(self, apps: Container[str]) -> None:
        """Forgets all other applications."""
        self._trials = {app: trial for app, trial in self._trials.items() if app in apps}
