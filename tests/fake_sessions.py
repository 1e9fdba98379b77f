"""A store of sessions as the path needs it: what it knows is laid out, what it is told is kept in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from serve_app.core.sessions import Held, History, Store, Turn, add_turn
from serve_app.ports import Opened


@dataclass
class FakeSessions:
    """``first`` is the region that another Router keeps while this one chooses; ``store`` is what this one is like."""

    known: dict[str, Opened] = field(default_factory=dict)
    store: Store = "kept"
    first: str | None = None
    asked: list[tuple[str, bool]] = field(default_factory=list)
    picked: list[tuple[str, str, str]] = field(default_factory=list)
    told: list[tuple[str, str | None, Turn | None]] = field(default_factory=list)

    async def open(self, key: str, *, history: bool) -> Opened:
        self.asked.append((key, history))
        opened = self.known.get(key, Opened(key))
        return replace(opened, store=self.store, history=opened.history if history else History())

    async def keep_pick(self, opened: Opened, agent: str, region: str) -> Opened:
        self.picked.append((opened.key, agent, region))
        stands, self.first = self.first or region, None
        kept = replace(opened, picks={**opened.picks, agent: stands}) if self.store == "kept" else opened
        self.known[opened.key] = replace(kept, history=self.known.get(opened.key, opened).history)
        return kept

    def remember(
        self, opened: Opened, language: str | None, turn: Turn | None = None, held: Held | None = None
    ) -> None:
        self.told.append((opened.key, language, turn))
        known = self.known.get(opened.key, opened)
        history = add_turn(known.history, turn.user, turn.answer) if turn is not None else known.history
        self.known[opened.key] = replace(
            known, language=language or known.language, history=history, held=held or known.held
        )
