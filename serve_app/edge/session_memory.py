"""Session languages in this Router's memory: bounded, forgotten after 30 minutes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

TTL_S: Final = 1800.0
KEPT: Final = 100_000


class SessionMemory:
    """The last language of each session, by session id; oldest forgotten first."""

    def __init__(self, ttl_s: float = TTL_S, kept: int = KEPT) -> None:
        self._ttl_s = ttl_s
        self._kept = kept
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def language(self, session_id: str, now_s: float) -> str | None:
        """The session's language, or ``None`` when it is new or silent for longer than the TTL."""
        found = self._known.get(session_id)
        if found is None or now_s - found[1] > self._ttl_s:
            return None
        return found[0]

    def remember_language(self, session_id: str, language: str, now_s: float) -> None:
        self._known[session_id] = (language, now_s)
        self._known.move_to_end(session_id)
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
