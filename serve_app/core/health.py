"""Is an engine alive? Tokens are the proof; a process that answers a ping is not.

What freezes at work is found after the stall limit. What freezes without work is found when it is next asked for a
token, :data:`IDLE_FRESH_S` after its last one at the latest, or by the first request, which has its whole time then.

What only waits for a processor is not frozen: it is late because its machine is busy, and to start another one in its
place would make that busier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: Tokens this recent need no further proof, where no ``health.ping`` is written.
FRESH_S: Final = 2.0
#: The same without work in the engine. A probe every two seconds would keep an idle engine half busy: after each token
#: vLLM spins for a second.
IDLE_FRESH_S: Final = 10.0
#: The most that one look may add to an engine's stillness.
LONGEST_LOOK_S: Final = 0.5
#: So much of the time in which it waits for a processor counts all the same: one that gets none is of no use either.
WAITING_RATIO: Final = 0.1

Verdict = Literal["alive", "stalled", "ask"]


@dataclass(slots=True)
class Stillness:
    """How long an engine with work in it has not moved, in the time that it could and that its watcher itself ran.

    A watcher that was frozen, starved or suspended has not seen the engine stand still: a look counts for at most
    :data:`LONGEST_LOOK_S`, however long ago the last one was. An engine without work may be as still as it likes.
    """

    looked_s: float
    moves: int = 0
    still_s: float = 0.0

    def look(self, now_s: float, moves: int, *, busy: bool, waited_s: float = 0.0) -> float:
        """One look; ``moves`` counts the steps that brought a token or carried a prefill on.

        ``waited_s`` is how long the engine waited for a processor since the last look.
        """
        passed_s = min(max(0.0, now_s - self.looked_s), LONGEST_LOOK_S)
        passed_s = max(passed_s - waited_s, WAITING_RATIO * passed_s)
        self.still_s = self.still_s + passed_s if busy and moves == self.moves else 0.0
        self.looked_s, self.moves = now_s, moves
        return self.still_s


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a replica sees of its engine. ``now_s`` and ``last_token_s`` are monotonic; ``still_s`` is a duration."""

    now_s: float
    last_token_s: float
    still_s: float
    longest_prefill_s: float
    stall_after_s: float
    idle: bool = False
    fresh_s: float = FRESH_S

    @property
    def stall_limit_s(self) -> float:
        """How long work without a move may still be a prefill: the floor plus the longest prefill seen."""
        return self.stall_after_s + self.longest_prefill_s


def judge(view: EngineView) -> Verdict:
    """``stalled`` with work that does not move, ``alive`` with fresh tokens, else ``ask`` for one."""
    if view.still_s > view.stall_limit_s:
        return "stalled"
    fresh_s = max(view.fresh_s, IDLE_FRESH_S) if view.idle else view.fresh_s
    return "alive" if view.now_s - view.last_token_s <= fresh_s else "ask"
