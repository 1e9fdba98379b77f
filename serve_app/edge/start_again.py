"""Has Serve try again what it has given up.

After a few failed starts Serve starts no more replicas of a deployment until its config differs, even where they could
start by now; the same config put again is no news to it. An application that it could not build, it builds when the
same is put again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.edge.desired_config import ConfigWriter, Desired
from serve_app.edge.serve_rest import BROKEN, AppStatus

log = logging.getLogger("ray.serve")

#: What was given up is tried again after so long, then each time after twice as long up to the longest.
AGAIN_S: Final = 60.0
LONGEST_S: Final = 3600.0


@dataclass(slots=True)
class _GivenUp:
    """When it was seen first, or last tried again, and how often that was."""

    at_s: float
    tries: int = 0

    @property
    def pause_s(self) -> float:
        return float(min(AGAIN_S * 2.0**self.tries, LONGEST_S))


def _given_up(state: AppStatus) -> list[str] | None:
    """The deployments that Serve starts no more, none for an application that was not built; ``None``: it goes on."""
    if state.status not in BROKEN:
        return None
    if not state.deployments:
        return []
    lost = [
        part.name
        for part in state.deployments
        if part.status in BROKEN and part.target_replicas != 0 and not part.replicas.keys() - {"STOPPING"}
    ]
    return lost or None


class StartAgain:
    """One region's. What was put to make Serve try again is in force from then on: the writer keeps it."""

    def __init__(self, writer: ConfigWriter, *, now_s: Callable[[], float]) -> None:
        self._writer, self._now_s = writer, now_s
        self._lost: dict[str, _GivenUp] = {}

    def told(self) -> list[str]:
        """What operators have to know of it now."""
        apps = {} if self._writer.desired is None else self._writer.desired.applications
        return [
            f"Serve has given {name} up; tried again: {lost.tries}, the next {lost.pause_s:.0f} s after the last"
            for name, lost in self._lost.items()
            if name in apps
        ]

    async def look(self, top: Mapping[str, Any]) -> None:
        """One look at what the writer last read of Serve, and one put for all that is due.

        Raises:
            ServeRestError: Serve does not answer or refuses; the writer goes on with its next look.
        """
        desired = self._writer.desired
        assert desired is not None
        again = self._tried(desired)
        if again is not None:
            await asyncio.to_thread(self._writer.put, desired.applications, top, again=again)

    def _tried(self, desired: Desired) -> dict[str, dict[str, int]] | None:
        """How often each deployment was tried again, with those that are due; ``None`` when nothing is due."""
        now_s, is_due = self._now_s(), False
        again = {name: dict(tries) for name, tries in desired.again.items()}
        self._lost = {name: lost for name, lost in self._lost.items() if name in desired.applications}
        for name in sorted(desired.applications.keys() & self._writer.seen.keys()):
            state = self._writer.seen[name]
            parts = _given_up(state)
            if parts is None:
                # One that is tried again goes on for a while before Serve gives it up again.
                if name in self._lost and (state.status == "RUNNING" or not self._lost[name].tries):
                    del self._lost[name]
                continue
            lost = self._lost.setdefault(name, _GivenUp(now_s))
            if now_s - lost.at_s < lost.pause_s:
                continue
            log.warning("Serve has given %s up, it is tried again", " ".join((name, *parts)))
            lost.at_s, lost.tries, is_due = now_s, lost.tries + 1, True
            if parts:
                tries = again.setdefault(name, {})
                tries |= {part: tries.get(part, 0) + 1 for part in parts}
        return again if is_due else None
