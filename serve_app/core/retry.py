"""When a failed attempt may be made again, and a budget that keeps retries a small share of traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serve_app.outcomes import LIMITED, UNKNOWN_RETRY_S, Reason

MAX_ATTEMPTS: Final = 3
#: Back-off before attempt 2 and 3 when the same target is tried again.
SAME_TARGET_BACKOFF_S: Final = (0.5, 1.5)
#: Worth another target.
ELSEWHERE: Final[frozenset[Reason]] = frozenset(
    {
        "replica_lost",
        "peer_silent",
        "upstream_failed",
        "upstream_invalid",
        "no_target",
        "queue_timeout",
        "first_byte_timeout",
        "overloaded",
    }
)
#: What another region may say no to that this one has allowed: its limits and zones are its own.
REFUSED_THERE: Final[frozenset[Reason]] = LIMITED | {"residency", "body_too_large", "model_not_found"}
#: Worth the same target again: back-pressure and timeouts are not, they would only make its queue longer.
SAME_TARGET: Final[frozenset[Reason]] = frozenset(
    {"replica_lost", "peer_silent", "upstream_failed", "upstream_invalid", "no_target"}
)
#: Who was asked is not there, so nobody did the work yet: another target gets what it would have got, and no more.
GONE: Final[frozenset[Reason]] = frozenset({"replica_lost", "peer_silent", "no_target"})


@dataclass(slots=True)
class RetryBudget:
    """Each request earns ``ratio`` of a retry, each retry costs one; ``burst`` is the most that can be saved.

    It is for retries that ask for the same work again. Moves away from who is not there are free: all that a lost
    region leaves without a first byte move at once.
    """

    ratio: float = 0.2
    burst: float = 10.0
    saved: float = 10.0

    def earn(self) -> None:
        self.saved = min(self.burst, self.saved + self.ratio)

    def spend(self) -> bool:
        """Take one retry if there is one."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class Again:
    """The next attempt: index into the choice's order, how long to wait first, and whether no budget pays for it."""

    index: int
    backoff_s: float
    is_free: bool = False


def next_attempt(
    reason: Reason,
    attempts: int,
    index: int,
    targets: int,
    retry_after_s: float | None = None,
    *,
    is_away: bool = False,
) -> Again | None:
    """What to try after attempt number ``attempts`` (from 1) at ``index`` of ``targets`` failed; ``None``: give up.

    ``retry_after_s`` is what the target itself said: then, and not before, it may be asked again, busy or not. For a
    target that is not there it is only our own advice to the client, and looking again costs nothing. ``is_away``: it
    was a target of another region.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    if index + 1 < targets:
        may = reason in ELSEWHERE or (is_away and reason in REFUSED_THERE)
        return Again(index + 1, 0.0, reason in GONE) if may else None
    hint_s = None if reason == "no_target" else retry_after_s
    if reason in SAME_TARGET:
        return Again(index, max(SAME_TARGET_BACKOFF_S[attempts - 1], hint_s or 0.0))
    if reason in ELSEWHERE and hint_s is not None:
        return Again(index, hint_s)
    return None


def start_left_s(usual_s: float | None, passed_s: float) -> float:
    """When an engine that has been starting for ``passed_s`` may be asked; ``usual_s`` is what its last start took.

    Of one that nobody has seen start, and of one that takes longer than last time, nothing is known.
    """
    left_s = 0.0 if usual_s is None else usual_s - passed_s
    return left_s if left_s > 0 else UNKNOWN_RETRY_S
