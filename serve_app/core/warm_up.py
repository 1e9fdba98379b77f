"""When is a new engine warm? When its first tokens get no faster any more, and are not slow for its agent.

An engine pays for what it makes at the first use: kernels, graphs, pages of its weights. The same few prompts are sent
to it in rounds, one after the other, so that a round is compared with rounds; its time is that of its slowest first
token. What is fast for one model is slow for another, so there is no limit in milliseconds for all of them:

* steady: the last rounds are near the best one of this start. A busy machine makes them uneven for as long as it is
  busy, so what is only uneven is let in when patience ends, where it is wanted most.
* slow: what the agent does not let its callers wait for, or a multiple of what earlier starts came to. What is slow
  when patience ends never gets warm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from serve_app.core.target_health import SLOW_FIRST_TOKEN_MS

#: So many rounds have to be normal, one after the other.
IN_A_ROW: Final = 3
#: Near the best round: at most so many times as long, and a wait on top that no caller feels.
STEADY_RATIO: Final = 1.5
STEADY_MS: Final = 250.0
#: Several engines may share the cores of a machine, so a start may well be a few times as slow as one alone was.
USUAL_RATIO: Final = 5.0
#: Patience ends with both: a slow engine needs the time, an uneven machine the rounds.
PATIENCE_ROUNDS: Final = 20
PATIENCE_S: Final = 60.0

Verdict = Literal["go_on", "warm", "never"]


@dataclass(frozen=True, slots=True)
class Norm:
    """What is known of an agent's first tokens before its engine starts.

    ``limit_ms`` is how long its callers may wait for one; ``usual_ms`` the best round of earlier starts, if any.
    """

    limit_ms: float
    usual_ms: float | None = None

    @property
    def slow_ms(self) -> float:
        """A round that takes longer is slow: never what a region would not call slow either."""
        if self.usual_ms is None:
            return self.limit_ms
        return min(self.limit_ms, max(SLOW_FIRST_TOKEN_MS, USUAL_RATIO * self.usual_ms))


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What to do after the rounds so far, and what these show."""

    verdict: Verdict
    shown: str


def judge(rounds_ms: Sequence[float], norm: Norm, spent_s: float) -> WarmUp:
    """After at least one round. ``inf`` is a round without a token; ``spent_s`` is since the first one began."""
    last = rounds_ms[-IN_A_ROW:]
    worst_ms, count = max(last), len(rounds_ms)
    if worst_ms > norm.slow_ms:
        usual = "" if norm.usual_ms is None else f", usual are {norm.usual_ms:.0f} ms"
        shown = f"{_told(worst_ms)} in the last of {count} rounds, more than {norm.slow_ms:.0f} ms are slow{usual}"
    else:
        shown = f"{_told(worst_ms)} in the last of {count} rounds, {_told(min(rounds_ms))} in the best"
    impatient = count >= PATIENCE_ROUNDS and spent_s >= PATIENCE_S
    if worst_ms > norm.slow_ms:
        return WarmUp("never" if impatient else "go_on", shown)
    steady = len(last) == IN_A_ROW and worst_ms <= STEADY_RATIO * min(rounds_ms) + STEADY_MS
    return WarmUp("warm" if steady or impatient else "go_on", shown)


def _told(round_ms: float) -> str:
    return "no first token" if round_ms == math.inf else f"first tokens after {round_ms:.0f} ms"
