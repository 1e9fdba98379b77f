"""A Router's side of its RegionAgent: the next picture of the fleet, and what this Router saw of targets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from deployments.region_handle import RegionAway
from serve_app.core.reports import FRESH_S, RouterReport
from serve_app.core.router_view import Remembered, aged
from serve_app.core.snapshots import Snapshot

log = logging.getLogger("ray.serve")

#: A long poll ends by itself well before this.
WATCH_LIMIT_S: Final = 4.0
#: A RegionAgent that was silent for longer is not trusted any more: see :func:`serve_app.core.router_view.aged`.
SILENT_S: Final = 5.0
PUSH_S: Final = 1.0
PUSH_LIMIT_S: Final = FRESH_S
AGAIN_S: Final = 0.25


class Ask(Protocol):
    """A limited call to the RegionAgent; ``RegionAway`` when there is none or it does not answer."""

    def __call__(self, method: str, *args: Any, limit_s: float) -> Awaitable[Any]: ...


class FleetWatch:
    """Keeps ``on_snapshot`` told. Until a RegionAgent answers it is never called: a region may have none."""

    def __init__(
        self,
        *,
        ask: Ask,
        router: str,
        region: Callable[[], str],
        report: Callable[[str, float], RouterReport],
        on_snapshot: Callable[[Snapshot], None],
        now_s: Callable[[], float],
    ) -> None:
        self._ask, self._router, self._region = ask, router, region
        self._report, self._on_snapshot, self._now_s = report, on_snapshot, now_s
        self._hurried = asyncio.Event()
        self._last: Snapshot | None = None
        self._heard_s = 0.0
        self._remembered = Remembered()
        self._trusted = False
        self._plan_s: float | None = None

    async def watch_once(self, limit_s: float = WATCH_LIMIT_S) -> bool:
        """One long poll; whether the RegionAgent answered with anything that is of use."""
        seen = (0, 0) if self._last is None else (self._last.epoch, self._last.generation)
        ends_s = self._remembered.ends_s()
        left_s = math.inf if ends_s is None else ends_s - self._now_s()
        if not self._trusted or left_s <= 0:
            # After a silence, and without what was remembered in it, the same picture is news.
            seen = (seen[0], 0)
        else:
            limit_s = min(limit_s, left_s)
        try:
            snapshot: Snapshot | None = await self._ask("watch", self._router, seen, limit_s=limit_s)
        except RegionAway as away:
            self._missed(str(away))
            return False
        self._heard_s = self._now_s()
        if snapshot is None:
            return True
        # Of a RegionAgent that is ending a late answer may come after the first of its successor.
        if (snapshot.epoch, snapshot.generation) < seen:
            return False
        if not self._trusted:
            log.info("snapshots come from the RegionAgent: %d.%d", snapshot.epoch, snapshot.generation)
        if self._last is not None and snapshot.epoch != self._last.epoch:
            self._remembered.begin(self._last, self._heard_s)
        snapshot = self._remembered.fill(snapshot, self._region(), self._heard_s)
        self._last, self._trusted = replace(snapshot, received_s=self._heard_s), True
        self._on_snapshot(self._last)
        return True

    def _missed(self, why: str) -> None:
        if self._last is not None and self._trusted and self._now_s() - self._heard_s > SILENT_S:
            log.warning("the RegionAgent is silent (%s): the last snapshot is used with less trust", why)
            self._trusted = False
            self._on_snapshot(aged(self._last, self._region()))

    async def watch_on(self) -> None:
        while True:
            if not await self.watch_once():
                await asyncio.sleep(AGAIN_S)

    def hurry(self) -> None:
        """There is a trip, or a probe's result, that other Routers have to know."""
        self._hurried.set()

    async def push_on(self) -> None:
        """Reports each second, and at once when hurried."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUSH_S):
                    await self._hurried.wait()
            self._hurried.clear()
            if not await self.push_once():
                await asyncio.sleep(AGAIN_S)

    async def push_once(self) -> bool:
        """One report; whether it arrived. What was counted in one that did not is lost, trips are told again."""
        try:
            age_s = await self._ask("push_router", self._report(self._router, self._now_s()), limit_s=PUSH_LIMIT_S)
        except RegionAway:
            return False
        self._plan_s = None if age_s is None else self._now_s() - age_s
        return True

    @property
    def plan_age_s(self) -> float | None:
        """How long ago the coordinator's plan was confirmed, as far as it is known here; ``None`` without one."""
        return None if self._plan_s is None else round(self._now_s() - self._plan_s, 1)
