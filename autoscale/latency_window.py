"""What an engine's users waited lately: a sliding window of queue waits, first tokens and failures. Pure.

No samples is a value of its own, never zero. A queue that stands still gives no samples at all, as a wait is known only
when it is over; so who waits now is asked for beside them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 10.0
#: The newest samples that are kept: under a flood older ones go before their time.
MOST_SAMPLES: Final = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """The window at one moment. ``newest_s`` is how old its newest queue wait is; ``None`` is "no data".

    ``oldest_wait_ms`` and ``started_rps`` are known even without samples: 0 when nobody waits, or was scheduled.
    """

    queue_wait_p50_ms: float | None
    queue_wait_p95_ms: float | None
    oldest_wait_ms: float
    first_token_p95_ms: float | None
    error_ratio: float | None
    newest_s: float | None
    started_rps: float = 0.0


@dataclass(slots=True)
class _Samples:
    """Values with the time they came, oldest first."""

    values: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    def add(self, value: float, now_s: float) -> None:
        if math.isfinite(value):
            self.values.append((now_s, max(0.0, value)))

    def lately(self, now_s: float) -> list[float]:
        # A clock that was set back leaves samples of the future: they are as old as can be told, not new for ever.
        while self.values and not 0.0 <= now_s - self.values[0][0] <= WINDOW_S:
            self.values.popleft()
        return [value for _, value in self.values]

    def rate(self, now_s: float) -> float:
        """Samples a second; under a flood over the time that is left of the window."""
        full = len(self.values) == MOST_SAMPLES and now_s > self.values[0][0]
        return len(self.values) / (now_s - self.values[0][0] if full else WINDOW_S)


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of all are not above; ``None`` without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class LatencyWindow:
    """The last :data:`WINDOW_S` of one engine's calls."""

    def __init__(self) -> None:
        self._waits, self._first_tokens, self._failures = _Samples(), _Samples(), _Samples()

    def waited(self, ms: float, now_s: float) -> None:
        """A call was scheduled, ``ms`` after it was sent."""
        self._waits.add(ms, now_s)

    def first_token(self, ms: float, now_s: float) -> None:
        """A call gave its first token, ``ms`` after it was sent."""
        self._first_tokens.add(ms, now_s)

    def ended(self, now_s: float, *, failed: bool) -> None:
        """A call ended by itself; one that its caller left says nothing and is not told here."""
        self._failures.add(1.0 if failed else 0.0, now_s)

    def read(self, now_s: float, waiting_since_s: Iterable[float] = ()) -> Reading:
        """The window now; ``waiting_since_s`` is when each call that is not scheduled yet was sent."""
        waits, failures = self._waits.lately(now_s), self._failures.lately(now_s)
        oldest_s = min(waiting_since_s, default=now_s)
        return Reading(
            queue_wait_p50_ms=percentile(waits, 0.5),
            queue_wait_p95_ms=percentile(waits, 0.95),
            oldest_wait_ms=max(0.0, now_s - oldest_s) * 1000.0,
            first_token_p95_ms=percentile(self._first_tokens.lately(now_s), 0.95),
            error_ratio=sum(failures) / len(failures) if failures else None,
            newest_s=now_s - self._waits.values[-1][0] if waits else None,
            started_rps=self._waits.rate(now_s),
        )
