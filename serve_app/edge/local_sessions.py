"""Session languages in this Router's memory: what is left where the region's store of sessions is away."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from serve_app.core.sessions import TTL_S, Held, Turn
from serve_app.ports import Opened

KEPT: Final = 100_000


class LocalSessions:
    """The Sessions port without a store: each session's last language, bounded, oldest forgotten first.

    Picks, turns and held agents are not kept: another Router would not know them.
    """

    def __init__(self, now_s: Callable[[], float], ttl_s: float = TTL_S, kept: int = KEPT) -> None:
        self._now_s = now_s
        self._ttl_s = ttl_s
        self._kept = kept
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def open(self, key: str, *, history: bool) -> Opened:
        return self.opened(key)

    def opened(self, key: str) -> Opened:
        """What is known here. A session that was silent for longer than the TTL is new."""
        found = self._known.get(key)
        if found is None or self._now_s() - found[1] > self._ttl_s:
            return Opened(key)
        return Opened(key, found[0])

    async def keep_pick(self, opened: Opened, agent: str, region: str) -> Opened:
        return opened

    def remember(
        self, opened: Opened, language: str | None, turn: Turn | None = None, held: Held | None = None
    ) -> None:
        if language is None:
            return
        self._known[opened.key] = (language, self._now_s())
        self._known.move_to_end(opened.key)
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
