"""A release that is tried beside the one in force: who is on which, and how both do.

Such a release is data: templates and routes. No engine starts for it, so a region serves both with the same replicas,
and a user who is moved back is back with the next snapshot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

#: Kinds of documents that a release of data is made of.
DATA_KINDS: Final = ("PromptTemplate", "RouteTable")
#: Upper bounds of the classes in which first tokens are counted, in ms; each is a quarter above the one before.
FIRST_TOKEN_MS: Final = tuple(round(5.0 * 1.25**i, 3) for i in range(40))
#: Users that are remembered as moved back because nobody could serve them the tried release.
MOST_BROKEN: Final = 2000


def data_of(documents: Iterable[Mapping[str, Any]]) -> str:
    """What of a whole set of documents a tried release is made of, as JSON; the order of documents does not matter."""
    kept = [d for d in documents if d["kind"] in DATA_KINDS]
    kept.sort(key=lambda d: (d["kind"], d["metadata"]["name"]))
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def with_data(documents: Iterable[Mapping[str, Any]], data: str) -> list[Mapping[str, Any]]:
    """The documents with the templates and routes of ``data`` in place of their own."""
    return [*(d for d in documents if d["kind"] not in DATA_KINDS), *json.loads(data)]


def user_hash(revision: str, user: str) -> int:
    """Where a user stands among all users, from 0 to 2**64 - 1: for each tried release somewhere else."""
    return int.from_bytes(hashlib.blake2b(f"{revision}/{user}".encode("utf-8", "replace"), digest_size=8).digest())


def is_tried_on(place: int, percent: int) -> bool:
    """Whether who stands at ``place`` is among the first ``percent`` of all: once in, in for every larger share."""
    return place * 100 < percent << 64


@dataclass(frozen=True, slots=True)
class ReleaseCount:
    """What became of the requests of one (agent, release). ``heard`` are answers whose language could be told.

    ``first_tokens`` counts by the classes of :data:`FIRST_TOKEN_MS`; slower ones are in the last.
    """

    agent: str
    release: str
    requests: int = 0
    failed: int = 0
    truncated: int = 0
    heard: int = 0
    mismatched: int = 0
    breaks: int = 0
    first_tokens: tuple[int, ...] = ()

    def plus(self, other: ReleaseCount) -> ReleaseCount:
        """Both together, under this one's name."""
        longest = max(len(self.first_tokens), len(other.first_tokens))
        one, two = (t + (0,) * (longest - len(t)) for t in (self.first_tokens, other.first_tokens))
        return ReleaseCount(
            self.agent,
            self.release,
            self.requests + other.requests,
            self.failed + other.failed,
            self.truncated + other.truncated,
            self.heard + other.heard,
            self.mismatched + other.mismatched,
            self.breaks + other.breaks,
            tuple(a + b for a, b in zip(one, two, strict=True)),
        )

    @property
    def first_token_p95_ms(self) -> float | None:
        """The upper bound of its class; ``None`` without first tokens."""
        left = 0.05 * sum(self.first_tokens)
        for i in range(len(self.first_tokens) - 1, -1, -1):
            left -= self.first_tokens[i]
            if left < 0:
                return FIRST_TOKEN_MS[i]
        return None


def first_token_class(first_token_ms: float | None) -> tuple[int, ...]:
    """One first token, counted."""
    if first_token_ms is None:
        return ()
    last = len(FIRST_TOKEN_MS) - 1
    found = next((i for i, most_ms in enumerate(FIRST_TOKEN_MS) if first_token_ms <= most_ms), last)
    return (*(0,) * found, 1)


def added(counts: Iterable[ReleaseCount]) -> dict[tuple[str, str], ReleaseCount]:
    """One count for each (agent, release)."""
    sums: dict[tuple[str, str], ReleaseCount] = {}
    for count in counts:
        key = (count.agent, count.release)
        sums[key] = sums[key].plus(count) if key in sums else count
    return sums


#: Whether the smoke tests of a region have run, and how they ended.
Smoke = Literal["", "passed", "failed"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one region does with a tried release: the share of users on it, or (``smoke``) only its smoke tests."""

    percent: int
    smoke: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A tried release in the coordinator's plan. Regions without a stage have nothing of it.

    ``move`` grows with every transition of the rollout: what is reported for another one is old. ``expected`` has the
    release of each (region, agent) that tries another one than the plan's own.
    """

    revision: str
    move: int
    data: str
    stages: Mapping[str, Stage]
    expected: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What a region says of the release that it tries; ``move`` and ``percent`` are those of its plan.

    ``revision`` is empty where nothing is tried.
    """

    revision: str = ""
    move: int = 0
    percent: int = 0
    smoke: Smoke = ""
    why: str = ""
    counts: tuple[ReleaseCount, ...] = ()


NO_TRIAL: Final = TrialReport()


@dataclass(frozen=True, slots=True)
class Tried:
    """The tried release as Routers get it: its data, the share of users on it, and the places of those moved back."""

    revision: str
    data: str
    percent: int
    broken: frozenset[int] = frozenset()
