"""The coordinator's loop around its state machine: effects are carried out, plans go to links, time passes."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import Audit, CloseLink, Event, Persist, Refused, SendPlan, Tick
from serve_app.core.reports import Plan
from serve_app.edge.facts_store import FencedError, Store, StoreError
from serve_app.edge.wire_link import plan_message

log = logging.getLogger("ray.serve")

#: A whole plan goes down each link this often, whatever went before.
FULL_EVERY_S: Final = 30.0
#: Whole plans that are on their way at once: of hundreds of regions each takes a megabyte.
FULL_AT_ONCE: Final = 8
#: Who takes no message for so long keeps others from theirs, and is told to dial again.
TAKE_LIMIT_S: Final = 10.0
#: In one heartbeat the coordinator looks so often whether something changed.
TICKS_PER_BEAT: Final = 4
#: A text of a region in the audit log is cut there.
LONGEST_TEXT: Final = 500
#: Audit lines that wait while the store does not take them.
MOST_WAITING: Final = 10_000


@dataclass(slots=True, eq=False)
class Link:
    """One region's open stream. It has no queue: what is sent next is made when the last has gone.

    ``deaf``: the region hears one of its peers no more.
    """

    region: str
    number: int
    deaf: bool = True
    told: Plan | None = None
    sent_s: float = float("-inf")
    full_at_s: float = float("-inf")
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    close: CloseLink | None = None


class Hub:
    """Everything of a serving coordinator but gRPC. ``stopped`` is set when it must not serve on."""

    def __init__(self, fleet: Fleet, store: Store, now_s: Callable[[], float], unix_s: Callable[[], float]) -> None:
        self.fleet = fleet
        self.store = store
        self.links: dict[int, Link] = {}
        self.counts: Counter[str] = Counter()
        self.stopped = asyncio.Event()
        self.fault = ""
        self.now_s = now_s
        self._unix_s = unix_s
        self._plan: Plan | None = None
        self._next_plan: Plan | None = None
        self._unstored = False
        self._lines: list[str] = []
        self._settling = asyncio.Lock()
        self._fulls = asyncio.Semaphore(FULL_AT_ONCE)
        #: By the plan that links were told, the message that brings them to the plan of now.
        self._messages: dict[tuple[int, int] | None, bytes] = {}

    # ---- events ----

    def handle(self, event: Event) -> Refused | None:
        """Takes an event. What it changes is stored and told by :meth:`settle`, at the latest with the next tick."""
        refused = None
        for effect in self.fleet.handle(event, self.now_s()):
            match effect:
                case SendPlan():
                    self._next_plan = effect.plan
                case Audit():
                    self.audit(effect)
                case Persist():
                    self._unstored = True
                case CloseLink():
                    self._close(effect)
                case Refused():
                    refused = effect
        return refused

    def audit(self, entry: Audit) -> None:
        """One more line of the audit log. The oldest that wait are given up while no store takes them."""
        texts = {key: text[:LONGEST_TEXT] for key, text in asdict(entry).items()}
        line = {"at_unix_s": round(self._unix_s(), 3), "epoch": self.fleet.facts.epoch, **texts}
        self._lines.append(json.dumps(line, ensure_ascii=True))
        del self._lines[:-MOST_WAITING]
        log.info("audit %s", self._lines[-1])

    async def settle(self) -> str:
        """Stores what is new, then tells it. Returns what the store said when it did not take it; plans go out then
        all the same, and it is tried again.
        """
        async with self._settling:
            fault = await self._store()
            plan, self._next_plan = self._next_plan, None
            if plan is not None and not self.stopped.is_set():
                self._plan = plan
                self._messages.clear()
                for link in self.links.values():
                    link.wake.set()
            return fault

    async def _store(self) -> str:
        self.fault = ""
        try:
            if self._unstored and not self.stopped.is_set():
                facts = self.fleet.facts
                await self.store.save(facts)
                self._unstored = self.fleet.facts != facts
            await self._append()
        except FencedError as error:
            self.fault = str(error)
            log.error("another coordinator has taken over: %s", error)
            self.stop()
        except StoreError as error:
            self.counts["store_failures"] += 1
            self.fault = str(error)
            log.error("facts are not stored: %s", error)
        return self.fault

    async def _append(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            await self.store.append(lines)
        except BaseException:  # a cancellation too: a line may come twice then, none is lost
            self._lines = lines + self._lines
            raise

    def stop(self) -> None:
        """Nothing more is told or answered; links end."""
        self.stopped.set()
        for link in self.links.values():
            link.closed.set()

    # ---- time ----

    async def run(self) -> None:
        """Ticks until it is stopped or cancelled."""
        while not self.stopped.is_set():
            self.handle(Tick())
            await self.settle()
            self.wake_links()
            await asyncio.sleep(self.fleet.wanted.heartbeat_s / TICKS_PER_BEAT)

    def wake_links(self) -> None:
        """A heartbeat for each link that was told nothing for as long."""
        due_s = self.now_s() - self.fleet.wanted.heartbeat_s
        for link in self.links.values():
            if link.sent_s <= due_s:
                link.wake.set()

    # ---- links ----

    def opened(self, region: str, number: int) -> Link:
        link = Link(region, number)
        self.links[number] = link
        link.wake.set()
        return link

    def _close(self, effect: CloseLink) -> None:
        link = self.links.get(effect.link)
        if link is not None:
            link.close = effect
            link.closed.set()

    async def send(self, link: Link, write: Callable[[bytes], Awaitable[object]]) -> None:
        """What this link has to be told now, if there is a plan at all."""
        plan, now_s = self._plan, self.now_s()
        if plan is None:
            return
        if link.told is not None and now_s < link.full_at_s:
            await self._write(link, plan, self._message(plan, link.told), write)
            return
        async with self._fulls:
            # Another plan may have come while this one waited.
            plan = self._plan
            assert plan is not None
            first = link.told is None
            message = self._whole(plan, link.told)
            await self._write(link, plan, message, write)
            # Regions that dialled together shall not all be told everything at once again.
            spread = zlib.crc32(link.region.encode()) % 1000 / 1000 if first else 1.0
            link.full_at_s = self.now_s() + FULL_EVERY_S * spread

    async def _write(self, link: Link, plan: Plan, message: bytes, write: Callable[[bytes], Awaitable[object]]) -> None:
        link.told, link.sent_s = plan, self.now_s()
        self.counts["sent"] += 1
        self.counts["sent_bytes"] += len(message)
        try:
            async with asyncio.timeout(TAKE_LIMIT_S):
                await write(message)
        except TimeoutError:
            self._close(CloseLink(link.number, "silent", f"{link.region} took no message for {TAKE_LIMIT_S:g} s"))

    def _message(self, plan: Plan, told: Plan | None) -> bytes:
        """What brings who was ``told`` to ``plan``. Made once for all links that were told the same."""
        key = None if told is None else told.order
        found = self._messages.get(key)
        if found is None:
            found = self._messages[key] = plan_message(plan, told).SerializeToString()
        return found

    def _whole(self, plan: Plan, told: Plan | None) -> bytes:
        """Every region of the plan; documents and releases, which are half of it, only to who has others."""
        rest = (plan.documents, plan.expected, plan.trial)
        if told is None or (told.documents, told.expected, told.trial) != rest:
            return self._message(plan, None)
        return self._message(plan, replace(plan, regions=(), generation=-1))
