"""Keeps a region's Serve config as it shall be, and takes it to what the coordinator's documents ask for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster_configs.faults import ConfigError
from serve_app.edge.desired_config import ConfigWriter, Desired, Refusal, rendered_with
from serve_app.edge.model_files import ModelError
from serve_app.edge.preemption import Preemption
from serve_app.edge.serve_apps import Apps, all_same, by_name, same, start_limit_s, steps
from serve_app.edge.serve_rest import BROKEN, AppStatus, ServeRestError
from serve_app.edge.start_again import StartAgain

log = logging.getLogger("ray.serve")

#: How often it is looked whether somebody else has changed the config. Who removes this very app leaves it the few
#: seconds of a graceful stop to be seen and undone.
LOOK_S: Final = 2.0
POLL_S: Final = 1.0
#: An engine has to be seen idle for so long: a call may still be on its way to it.
IDLE_S: Final = 3.0
#: A revision that was refused is tried again after so long: the operator may have mended what it failed of. One whose
#: engines were started in vain after twice as long each time: a start takes what engines that serve need.
REFUSED_S: Final = 60.0
#: A foreign change is told to peers and coordinator for so long.
TOLD_S: Final = 60.0


class _Refused(Exception):
    """Documents that this region cannot put in force; the message is for operators."""

    #: Something was started for it.
    has_started = False


@dataclass(frozen=True, slots=True)
class _Wanted:
    revision: str
    documents: str


def _pause_s(refusal: Refusal) -> float:
    """How long the revision is left alone."""
    return REFUSED_S * 2.0 ** max(0, refusal.starts - 1)


class ConfigKeeper:
    """The one task that writes. ``on_revision`` hears of each revision once what it asks for runs."""

    def __init__(
        self,
        writer: ConfigWriter,
        *,
        now_s: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        is_idle: Callable[[str], bool],
        on_revision: Callable[[str], None],
        on_put_back: Callable[[int], None],
        preemption: Preemption,
    ) -> None:
        self._writer, self._preemption, self._again = writer, preemption, StartAgain(writer, now_s=now_s)
        self._now_s, self._sleep = now_s, sleep
        self._is_idle, self._on_revision, self._on_put_back = is_idle, on_revision, on_put_back
        self._user_config: Mapping[str, Any] = {}
        self._wanted: _Wanted | None = None
        #: When the revision that the writer remembers as refused was tried; a restart counts as a trial.
        self._tried_s = now_s()
        self._step = ""
        self._foreign: tuple[str, float] | None = None
        self._wake = asyncio.Event()

    def configure(self, user_config: Mapping[str, Any]) -> None:
        """What the RegionAgent was started with: what stays where it is, whatever documents say."""
        self._user_config = user_config

    def want(self, revision: str, documents: str) -> None:
        """The coordinator's documents; the same ones again cost nothing."""
        if documents and (self._wanted is None or self._wanted.revision != revision):
            self._wanted = _Wanted(revision, documents)
            self._wake.set()

    def failed_start(self, app: str, replica: str) -> None:
        """A replica of an engine has ended before it ever served."""
        self._preemption.failed_start(app, replica)

    @property
    def refused(self) -> str:
        """The wanted revision, when it was tried in vain; empty when not."""
        refusal = self._refusal
        return "" if refusal is None else refusal.revision

    @property
    def _refusal(self) -> Refusal | None:
        """Of the wanted revision."""
        desired, wanted = self._writer.desired, self._wanted
        last = None if desired is None else desired.refused
        return last if last is not None and wanted is not None and last.revision == wanted.revision else None

    def told(self) -> str:
        """What operators have to know now, empty when all is as it shall be."""
        said = [self._step]
        if (refusal := self._refusal) is not None:
            starts = f"; starts in vain: {refusal.starts}, the next {_pause_s(refusal):.0f} s after the last"
            said.append(f"revision {refusal.revision} is refused: {refusal.why}{starts if refusal.starts else ''}")
        if self._foreign is not None and self._now_s() - self._foreign[1] <= TOLD_S:
            said.append(f"a foreign change of the Serve config was put back: {self._foreign[0]}")
        said += self._again.told() + self._preemption.told()
        return "; ".join(part for part in said if part)

    async def run(self) -> None:
        """Looks, puts back, applies, until cancelled. A dashboard that does not answer is asked again."""
        while True:
            try:
                await self.turn()
            except ServeRestError as error:
                log.warning("the Serve config of this region cannot be kept now: %s", error)
            except Exception:  # a fault of ours must not take the region's picture of the fleet away with it
                log.exception("the Serve config of this region is not kept")
            try:
                async with asyncio.timeout(POLL_S if self._preemption.is_urgent else LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def turn(self) -> None:
        """One look, and everything that follows from it.

        Raises:
            ServeRestError: Serve does not answer; what was begun goes on with the next turn.
        """
        if self._writer.desired is None:
            await asyncio.to_thread(self._writer.begin)
            if self._writer.desired is None:
                return
            self._on_revision(self._writer.desired.revision)
        await self._look()
        wanted, desired = self._wanted, self._writer.desired
        if wanted is None or self._is_refused():
            return
        try:
            if wanted.revision != desired.revision:
                await self._apply(wanted, desired)
            await self._clear_away()
            await asyncio.to_thread(self._writer.refuse, None)
        except _Refused as refused:
            log.error("revision %s cannot be put in force: %s", wanted.revision, refused)
            self._tried_s = self._now_s()
            if not refused.has_started:
                await asyncio.to_thread(self._writer.refuse, self._refusal_of(wanted, refused, started=0))
        finally:
            self._step = ""

    def _is_refused(self) -> bool:
        """Whether it was tried not long ago: what it failed of may have been mended since."""
        last = self._refusal
        return last is not None and self._now_s() - self._tried_s < _pause_s(last)

    def _refusal_of(self, wanted: _Wanted, refused: _Refused, started: int) -> Refusal:
        before = 0 if self._refusal is None else self._refusal.starts
        return Refusal(wanted.revision, str(refused), before + started)

    def _top(self) -> dict[str, Any]:
        """What stands above the applications, as the region was started."""
        return dict(self._user_config["top"])

    async def _apply(self, wanted: _Wanted, before: Desired) -> None:
        """Goes on where it was left, if it was: a step that is in force already is not gone back to."""
        self._step = f"revision {wanted.revision}: reading"
        try:
            rendered = await asyncio.to_thread(rendered_with, self._user_config, wanted.documents)
        except ConfigError as error:
            raise _Refused("; ".join(str(fault) for fault in error.faults)[:1000]) from None
        except (LookupError, ModelError, ValueError, OSError) as error:
            raise _Refused(str(error)[:1000]) from None
        new = by_name(rendered["applications"])
        *way, _ = steps(before.fulfilled, new)
        reached = next((i for i, apps in reversed([*enumerate(way)]) if all_same(before.applications, apps)), 0)
        for i, apps in enumerate(way[reached:], reached + 1):
            self._step = f"revision {wanted.revision}: step {i} of {len(way) + 1}"
            log.info("%s: %s", self._step, ", ".join(sorted(apps)))
            changed = {n: app for n, app in apps.items() if not same(before.fulfilled.get(n, {}), app)}
            try:
                await self._put(apps)
                await self._until_running(changed)
            except _Refused as refused:
                # In one write: whoever comes after a crash or a dashboard that is away knows both.
                refused.has_started, self._tried_s = True, self._now_s()
                refusal = self._refusal_of(wanted, refused, started=1)
                await asyncio.to_thread(self._writer.put, before.fulfilled, self._top(), refused=refusal)
                raise
        await asyncio.to_thread(self._writer.fulfils, wanted.revision, new.keys())
        self._on_revision(wanted.revision)
        log.info("revision %s is in force", wanted.revision)

    async def _put(self, apps: Apps) -> None:
        """Puts a step of the wanted revision in force."""
        try:
            await asyncio.to_thread(self._writer.put, apps, self._top())
        except ServeRestError as error:
            # Serve has read it and will say the same of it the next time.
            if error.status == 400:
                raise _Refused(str(error)[-1000:]) from None
            raise

    async def _clear_away(self) -> None:
        """Deletes what the documents in force name no longer, when it is idle."""
        desired = self._writer.desired
        assert desired is not None
        if desired.is_settled:
            return
        left = {name: app for name, app in desired.applications.items() if name not in desired.fulfilled}
        self._step = f"revision {desired.revision}: {', '.join(sorted(left))} are leaving"
        await self._until_idle(left)
        await asyncio.to_thread(self._writer.put, desired.fulfilled, self._top())

    async def _until_running(self, apps: Apps) -> None:
        """Waits for what was changed; an engine that is broken anyway is not this revision's fault."""
        step, began_s = self._step, self._now_s()
        said = ""
        while True:
            # Serve takes a moment until it says of a changed application that it is being deployed.
            await self._sleep(POLL_S)
            late = sorted(apps)
            try:
                states = await self._look()
            except ServeRestError as error:
                said = f": {error}"
            else:
                broken = [s for n, s in states.items() if n in apps and s.status in BROKEN]
                if broken:
                    raise _Refused(_last_words(broken))
                late, said = [n for n in late if n not in states or states[n].status != "RUNNING"], ""
                if not late:
                    return
            self._step = f"{step}: starting {', '.join(late)}"
            waited_s = self._now_s() - began_s
            for name in late:
                if waited_s > start_limit_s(apps[name]):
                    raise _Refused(f"{name} not running after {start_limit_s(apps[name]):.0f} s{said}")

    async def _until_idle(self, apps: Apps) -> None:
        """Nothing waits or runs in these engines, or it had all the time that a request may take."""
        totals = [d.get("graceful_shutdown_timeout_s", 0.0) for app in apps.values() for d in app["deployments"]]
        until_s, since_s = self._now_s() + max(totals, default=0.0), self._now_s()
        while self._now_s() < until_s and self._now_s() - since_s < IDLE_S:
            await self._sleep(POLL_S)
            with contextlib.suppress(ServeRestError):
                await self._look()
            if not all(self._is_idle(app) for app in apps):
                since_s = self._now_s()

    async def _look(self) -> Mapping[str, AppStatus]:
        """The applications' states, after what does not wait until documents are in force.

        That is undoing what somebody else has changed, room for who needs it, and what Serve has given up.
        """
        foreign = await asyncio.to_thread(self._writer.put_back, self._top())
        if foreign:
            self._foreign = (", ".join(foreign), self._now_s())
            log.warning("somebody else has changed the Serve config; put back: %s", self._foreign[0])
            self._on_put_back(len(foreign))
        await self._preemption.look(self._top())
        await self._again.look(self._top())
        return self._writer.seen


def _last_words(broken: list[AppStatus]) -> str:
    """The last line that each broken application says."""
    return "; ".join(f"{app.name} is {app.status}: {(app.told.splitlines() or ['?'])[-1][:300]}" for app in broken)
