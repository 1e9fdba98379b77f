"""Is an engine alive? Tokens are the proof; a process that answers a ping is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: Tokens this recent need no further proof.
FRESH_S: Final = 2.0

Verdict = Literal["alive", "stalled", "ask"]


@dataclass(frozen=True, slots=True)
class EngineView:
    """What a replica sees of its engine. Times are monotonic seconds; ``unfinished`` counts requests inside."""

    now_s: float
    last_token_s: float
    unfinished: int
    longest_prefill_s: float
    stall_after_s: float

    @property
    def stall_limit_s(self) -> float:
        """How long work without a token is still a prefill: the floor plus the longest prefill seen."""
        return self.stall_after_s + self.longest_prefill_s


def judge(view: EngineView) -> Verdict:
    """``alive`` with fresh tokens, ``stalled`` with work and none for too long, else ``ask`` for one."""
    silent_s = view.now_s - view.last_token_s
    if silent_s <= FRESH_S:
        return "alive"
    if view.unfinished and silent_s > view.stall_limit_s:
        return "stalled"
    return "ask"
