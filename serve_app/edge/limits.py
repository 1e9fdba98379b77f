"""Tenant limits and slots inside one Router: all there is without a Redis, and the bound when it is gone."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from serve_app.core.admission import NO_LIMITS, Ask, Bucket, Left, Refused, Spent, State, decide, give_back, level_at
from serve_app.ports import Grant

#: How much the last request weighs in the average time that a slot is held.
HELD_WEIGHT: Final = 0.1
#: Before any request has ended, one is taken to last this long.
HELD_GUESS_S: Final = 1.0


class LocalLimits:
    """Each limit divided by ``share``, the number of Routers that each allow their part.

    Requests are counted here however they were admitted, and buckets stay: a Redis that comes and goes forgets none of
    what runs, and is no second allowance.
    """

    def __init__(self, now_s: Callable[[], float], share: int = 1) -> None:
        self.share = share
        self.live: dict[str, Grant] = {}
        self._now_s = now_s
        self._buckets: dict[str, tuple[Bucket | None, Bucket | None]] = {}
        self._held: Counter[str] = Counter()
        self._held_s = HELD_GUESS_S

    def slot_free_s(self) -> float:
        """How long a request holds its slots, on average over the last ones."""
        return self._held_s

    async def admit(self, ask: Ask) -> Grant | Refused:
        if not ask.is_limited:
            return self.grant(ask, "none")
        requests, tokens = self._buckets.get(ask.tenant, (None, None))
        state = State(requests, tokens, {s.subject: self._held[s.subject] for s in ask.slots})
        decided = decide(ask, state, self._now_s(), slot_free_s=self._held_s, share=self.share)
        if isinstance(decided, Refused):
            return decided
        self._buckets[ask.tenant] = (decided.requests, decided.tokens)
        return self.grant(ask, "router", left=decided.left)

    def grant(
        self,
        ask: Ask,
        decided_by: Literal["region", "router", "none"],
        grant_id: str | None = None,
        left: Left = NO_LIMITS,
    ) -> Grant:
        """Counts a request that may run, whoever decided it."""
        if decided_by == "region":
            self._charge(ask)
        made = Grant(grant_id or secrets.token_hex(8), ask, decided_by, left)
        self.live[made.id] = made
        self._held.update(s.subject for s in ask.slots)
        return made

    def _charge(self, ask: Ask) -> None:
        """Takes from this Router's part what Redis has admitted.

        Among several Routers that can be more than its part, rightly: then the part is used up, not in debt.
        """
        now_s = self._now_s()

        def taken(bucket: Bucket | None, limit: int | None, cost: int) -> Bucket | None:
            if limit is None:
                return None
            level = level_at(bucket, limit / self.share, now_s) - cost
            return Bucket(level if self.share == 1 else max(0.0, level), now_s)

        requests, tokens = self._buckets.get(ask.tenant, (None, None))
        self._buckets[ask.tenant] = (
            taken(requests, ask.requests_per_minute, 1),
            taken(tokens, ask.tokens_per_minute, ask.tokens),
        )

    def settle(self, grant: Grant, spent: Spent) -> None:
        ask = grant.ask
        del self.live[grant.id]
        for slot in ask.slots:
            self._held[slot.subject] -= 1
            if self._held[slot.subject] <= 0:
                del self._held[slot.subject]
        if spent.started:
            self._held_s += HELD_WEIGHT * (spent.held_s - self._held_s)
        requests, tokens = self._buckets.get(ask.tenant, (None, None))
        now_s = self._now_s()
        if ask.requests_per_minute is not None:
            requests = give_back(requests, spent.requests_back, ask.requests_per_minute / self.share, now_s)
        if ask.tokens_per_minute is not None:
            tokens = give_back(tokens, spent.tokens_back(ask), ask.tokens_per_minute / self.share, now_s)
        self._buckets[ask.tenant] = (requests, tokens)
