"""When is a new engine warm? When its first tokens get no faster any more, and are not slow for its agent.

An engine pays for what it makes at the first use: kernels, graphs, pages of its weights. The same few prompts are sent
to it in rounds, one after the other, so that a round is compared with rounds; its time is that of its slowest first
token. What is fast for one model is slow for another, so there is no limit in milliseconds for all of them:

* steady: the last rounds are near the best one of this start. A busy machine makes them uneven for as long as it is
  busy, so what is only uneven is let in when patience ends, where it is wanted most.
* slow: what the agent does not let its callers wait for, or a multiple of what earlier starts came to. What is slow
  when patience ends never gets warm.

An engine that waits for processors more than it has them is slow by its machine's fault. Given up, it would be started
again and make the machine fuller. So such a round is not compared with earlier starts, and no engine is given up for
it: one that callers would not wait for goes on, for as long as its start may take.
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
class Round:
    """One round: its slowest first token, ``inf`` where one did not come, and what its engine had of the processors.

    ``ran_s`` and ``waited_s`` are sums over the engine's threads, ``took_s`` is the time that passed.
    """

    slowest_ms: float
    took_s: float = 0.0
    ran_s: float = 0.0
    waited_s: float = 0.0

    @property
    def starved(self) -> bool:
        """Whether its machine was full.

        Threads of an engine that spin also wait for each other, but run more than they wait; one that hangs hardly does
        either.
        """
        return self.waited_s > max(self.ran_s, self.took_s / 2)

    def is_slow(self, norm: Norm) -> bool:
        return self.slowest_ms > (norm.limit_ms if self.starved else norm.slow_ms)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What to do after the rounds so far, and what these show."""

    verdict: Verdict
    shown: str


def judge(rounds: Sequence[Round], norm: Norm, spent_s: float) -> WarmUp:
    """After at least one round; ``spent_s`` is since the first one began."""
    last, count = rounds[-IN_A_ROW:], len(rounds)
    best_ms = min(one.slowest_ms for one in rounds)
    worst_ms = max(one.slowest_ms for one in last)
    shown = f"{_told(worst_ms)} in the last of {count} rounds, "
    impatient = count >= PATIENCE_ROUNDS and spent_s >= PATIENCE_S
    slow = [one for one in last if one.is_slow(norm)]
    if slow and all(one.starved for one in slow):
        return WarmUp("go_on", f"{shown}more than {norm.limit_ms:.0f} ms are slow, on a machine that is full")
    if slow:
        usual = "" if norm.usual_ms is None else f", usual are {norm.usual_ms:.0f} ms"
        return WarmUp("never" if impatient else "go_on", f"{shown}more than {norm.slow_ms:.0f} ms are slow{usual}")
    steady = len(last) == IN_A_ROW and worst_ms <= STEADY_RATIO * best_ms + STEADY_MS
    return WarmUp("warm" if steady or impatient else "go_on", f"{shown}{_told(best_ms)} in the best")


def _told(round_ms: float) -> str:
    return "no first token" if round_ms == math.inf else f"first tokens after {round_ms:.0f} ms"
