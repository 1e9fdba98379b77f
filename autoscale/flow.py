"""How many calls come, and how many a full replica starts: what a queue that stands there needs. Pure.

The length of a wait says that there are too few replicas, not how many: it stays long after the missing ones came,
until the queue of before has drained. How fast the queue grows or shrinks says it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

#: Growth is measured over so long, and so long is what a replica has just started told for its first time.
TREND_S: Final = 10.0
#: Of that, so much has to be seen.
SHORTEST_S: Final = 5.0
#: A queue that drains by itself in so long needs nobody.
DRAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Flow:
    """What was seen lately; ``Flow()`` has seen nothing.

    ``samples`` are (when, calls that wait), one a second. ``replica_rps`` is what one replica started when all were
    full, ``None`` before that was seen. So many ``running`` there have been since ``steady_s``.
    """

    samples: tuple[tuple[float, float], ...] = ()
    running: int | None = None
    steady_s: float = -math.inf
    replica_rps: float | None = None

    def seen(self, now_s: float, running: int, waiting: float | None, started_rps: float | None) -> Flow:
        """With one more look. What nobody knows ends the trend: it begins again with the next look."""
        # The first replica of all has nobody whose queue it could shorten.
        steady_s = now_s if self.running and running != self.running else min(self.steady_s, now_s)
        now = replace(self, running=running, steady_s=steady_s)
        if waiting is None or started_rps is None:
            return replace(now, samples=())
        kept = tuple(sample for sample in self.samples if 0 <= now_s - sample[0] <= TREND_S)
        if not kept or now_s - kept[-1][0] >= 1.0:
            kept = (*kept, (now_s, waiting))
        full = kept[-1][0] - kept[0][0] >= SHORTEST_S and all(waits > 0 for _, waits in kept)
        if full and started_rps > 0 and not now.grown_lately(now_s):
            return replace(now, samples=kept, replica_rps=started_rps / max(1, running))
        return replace(now, samples=kept)

    def grown_lately(self, now_s: float) -> bool:
        """Whether the number of replicas changed so lately that its effect is not to be seen yet."""
        return now_s - self.steady_s < TREND_S

    def needed(self, waiting: float | None, started_rps: float | None) -> float | None:
        """Replicas that take what comes and drain what waits; ``None`` when that was not seen yet."""
        if self.replica_rps is None or not self.samples or waiting is None or not started_rps:
            # Where nothing starts at all, what full replicas did before says nothing.
            return None
        (first_s, before), (last_s, _) = self.samples[0], self.samples[-1]
        if last_s - first_s < SHORTEST_S:
            return None
        arriving_rps = started_rps + (waiting - before) / (last_s - first_s)
        return (arriving_rps + waiting / DRAIN_S) / self.replica_rps
