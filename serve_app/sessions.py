"""A request's session, from its opening to the answer's last word: what is known, what is kept, what is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.core import budget, rules
from serve_app.core import sessions as core
from serve_app.core.answers import Listener, text_of_whole
from serve_app.core.table import Region, Tenant
from serve_app.core.tenants import check_residency
from serve_app.openai_request import ParsedRequest
from serve_app.ports import Opened, RequestRecord, Sessions, World

#: What earlier turns and the new one may take of a context window; the rest is the answer's.
HISTORY_RATIO: Final = 0.5


@dataclass(slots=True)
class RequestSession:
    """The session of one request; every method does nothing for a request without one."""

    parsed: ParsedRequest
    record: RequestRecord
    store: Sessions
    opened: Opened | None = None
    #: Turns are asked for, and this region may keep them.
    history: bool = False
    _held: core.Held | None = None
    _listener: Listener = field(default_factory=Listener)

    @property
    def key(self) -> str | None:
        return self.opened.key if self.opened is not None else None

    @property
    def language(self) -> str | None:
        return self.opened.language if self.opened is not None else None

    def kept(self, agent: str) -> str | None:
        """The region that an agent answers this session from."""
        return self.opened.picks.get(agent) if self.opened is not None else None

    @property
    def keeps(self) -> bool:
        """Whether what is chosen now will be known at the next turn."""
        return self.opened is not None and self.opened.store == "kept"

    def stays(self, route: rules.Route, world: World, tenant: Tenant) -> rules.Route:
        """The route of this turn: that of a stronger agent which the session is with, where the rules say a weaker one.

        Who names an agent has it.
        """
        if self.opened is None or route.rule == rules.BY_NAME:
            return route
        table, targets = world.table, world.snapshot.targets
        well = {t.agent for t in targets if t.health in ("healthy", "slow")}
        well |= {t.agent for t in targets if t.health == "unknown" and t.region == table.region.name}
        able = well.intersection(rules.allowed_agents(table, tenant))
        agent, self._held = core.hold(self.opened.held, route.agent, table.agents, able)
        if self._held is None or agent is route.agent:
            return route
        turn = f"turn {self._held.weaker_turns} of {core.BACK_TURNS - 1}"
        said = f"the session stays with {agent.name}, which is stronger than {route.agent.name} ({turn})"
        return replace(route, agent=agent, reason=f"{route.reason}; {said}")

    def with_history(self, context_tokens: int | None = None) -> ParsedRequest:
        """The request as an engine shall see it: the conversation that is kept here stands before the new turn.

        Args:
            context_tokens: of the agent that was chosen; all that is kept, as long as there is none.
        """
        if self.opened is None or not self.history:
            return self.parsed
        most = 10**9 if context_tokens is None else int(context_tokens * HISTORY_RATIO)
        messages, turns = core.with_history(self.opened.history, self.parsed.messages, most, self.parsed.text_bytes)
        self.record.history_turns = turns
        own = {id(m) for m in self.parsed.messages}
        kept_bytes = budget.messages_bytes(m for m in messages if id(m) not in own)
        return replace(self.parsed, messages=messages, text_bytes=self.parsed.text_bytes + kept_bytes)

    async def keep(self, agent: str, region: str) -> str:
        """Keeps a choice, and says which stands: another Router may have been first."""
        if self.opened is None:
            return region
        before = self.kept(agent)
        if before != region:
            self.opened = await self.store.keep_pick(self.opened, agent, region)
        stands = self.kept(agent) or region
        if before is not None and stands != before:
            self.record.session_moved_from = before
        self.record.session_store = self.opened.store
        return stands

    def carry(self) -> bytes:
        """What goes along to another region: it can go on with the session when this one is gone."""
        if self.opened is None:
            return b""
        return core.carry(self.opened.history, self.record.language if self.record.language != "und" else None)

    def begun(self) -> None:
        """The answer has begun: the session speaks this language from now on, and lives on."""
        if self.opened is not None:
            language = self.record.language
            self.store.remember(self.opened, language if language != "und" else None, held=self._held)

    def headers(self) -> dict[str, str]:
        """Whether the region's store took part, and how many earlier turns went before the new one, if any could."""
        if self.opened is None:
            return {}
        told: dict[str, str] = {"x-grix-session": self.opened.store}
        if self.parsed.history:
            is_off = not self.history or self.opened.store == "off"
            told["x-grix-history"] = "off" if is_off else str(self.record.history_turns)
        return told

    def hear(self, data: bytes) -> None:
        """Bytes of a stream that have gone to the client."""
        if self.history:
            self._listener.hear(data)

    def ended(self, whole: bytes | None = None) -> None:
        """The answer has ended; ``whole`` when it was no stream. Half an answer, or none, is no turn."""
        if self.opened is None or not self.history:
            return
        heard = self._listener.text if self._listener.done else ""
        answer = heard if whole is None else text_of_whole(whole)
        if answer:
            self.store.remember(self.opened, None, core.Turn(self.parsed.last_text, answer))


async def open_session(
    store: Sessions, region: Region, tenant: Tenant, parsed: ParsedRequest, record: RequestRecord
) -> RequestSession:
    """Asks the store what it knows of a request's session; a request without one asks nobody.

    Turns of a request whose data may not be in this region are neither read nor kept.
    """
    session = RequestSession(parsed, record, store)
    if parsed.session_id is not None:
        session.history = parsed.history and check_residency(tenant, region.residency, parsed.data_class)
        key = core.session_key(tenant.name, parsed.data_class, parsed.session_id)
        session.opened = await store.open(key, history=session.history)
        record.session_store = session.opened.store
    return session
