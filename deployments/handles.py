"""Serve handles behind the ports of the request path: every call over one is limited and cancellable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Final

from ray import serve
from ray.exceptions import RayActorError, RayError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.replicas import Finder, running_replicas
from serve_app.core.language import LanguageGuess
from serve_app.core.retry import start_left_s
from serve_app.core.scripts import start
from serve_app.core.snapshots import Target
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Frame, Head, Packet, Tail

log = logging.getLogger("ray.serve")

REFRESH_S: Final = 1.0
#: A replica proves itself within this time or not at all.
PROBE_LIMIT_S: Final = 5.0
#: Whom nobody accepts for so long has waited, whatever for.
WAITED_S: Final = 1.0


class HandleDetector:
    """The Detector port over a handle to the LanguageDetector deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._detect = handle.detect

    async def detect(self, text: str, session_language: str | None) -> LanguageGuess:
        """The caller limits the time.

        Raises:
            GrixError: ``upstream_failed`` when no detector answers.
        """
        try:
            # What decides a language is in the first characters; the rest would only cross processes.
            guess: LanguageGuess = await self._detect.remote(start(text, 2000), session_language)
        except (RayError, RayServeException) as error:
            log.warning("language detector failed: %s", type(error).__name__)
            raise GrixError("upstream_failed", "The language detector does not answer.") from None
        return guess


class HandleAgents:
    """The Agents port over handles, built off the request path when the table names a new app."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._handles: dict[str, DeploymentHandle] = {}
        self._finder = Finder(lambda app: serve.get_app_handle(app))
        self._keeping = asyncio.Lock()
        self._min_replicas: Mapping[str, int] = {}
        #: By app, the patience of calls that nobody has accepted yet.
        self._waiting: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)
        #: Since when an app has no replica that could be asked.
        self._away_s: dict[str, float] = {}

    async def keep(self, apps: Mapping[str, int]) -> None:
        """Builds missing handles and drops those the table no longer names. An app not deployed yet is tried again.

        ``apps`` names the least replicas of each; of several that come at once the last one's hold. Calls that wait for
        an app whose replicas all died go on to another target, or end: a new engine takes longer to start than they may
        wait.
        """
        self._min_replicas = apps
        async with self._keeping:
            found = await self._finder.found(self._min_replicas.keys() - self._handles.keys())
            for app, handle in found.items():
                # The first .options() must run on the loop that will use the handle.
                self._handles[app] = handle.options(
                    stream=True, method_name="call", request_serialization="pickle", response_serialization="pickle"
                )
            for app in self._handles.keys() - self._min_replicas.keys():
                del self._handles[app]
        away = {app for app in self._min_replicas if app not in self._handles} | self.bereft()
        self._away_s = {app: self._away_s.get(app, self._now_s()) for app in away}
        for app, handle in self._handles.items():
            if self._bereft(app, handle):
                for patience in self._waiting.get(app, ()):
                    # One that has been told already takes no other end.
                    if not patience.expired():
                        patience.reschedule(0.0)

    def bereft(self) -> frozenset[str]:
        """The apps whose replicas all died; known as soon as a call has met a dead one."""
        return frozenset(app for app, handle in self._handles.items() if self._bereft(app, handle))

    def running(self) -> frozenset[str]:
        """The apps that have a replica now, as far as a handle has heard."""
        return frozenset(app for app, handle in self._handles.items() if running_replicas(handle))

    def _bereft(self, app: str, handle: DeploymentHandle) -> bool:
        """Whether all replicas died. An app that may have none is woken by the call that waits."""
        return self._min_replicas.get(app, 0) > 0 and running_replicas(handle) == 0

    async def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        """Frames of one attempt; closing this generator cancels the call, queued or running.

        Raises:
            GrixError: ``no_target``, ``overloaded``, ``replica_lost`` or ``upstream_failed``.
        """
        handle = self._handles.get(target.app)
        if handle is None:
            raise self._starting(target, "is not started here")
        if self._bereft(target.app, handle):
            raise self._starting(target, "has no replica now; another one is starting")
        # No replica, and yet not bereft: the agent is at zero, and this call wakes it. Serve does not tell of an app
        # whether it never had one or it has just not heard: then it shows in the wait.
        may_wake, running = self._min_replicas.get(target.app) == 0, running_replicas(handle)
        began_s = self._now_s()
        packets = handle.remote(call)
        ended = False
        try:
            first = await self._accepted(target, packets)
            ended = bool(first) and isinstance(first[-1], Tail)
            unheard_late = running is None and self._now_s() - began_s > WAITED_S
            wakes = may_wake and (running == 0 or unheard_late)
            for frame in first:
                yield _told(frame, wakes=wakes)
            async for packet in packets:
                # After its tail a call has nothing left to cancel: an abort for each finished one would be a flood.
                ended = isinstance(packet[-1], Tail)
                for frame in packet:
                    yield _told(frame, wakes=wakes)
            ended = True
        except BackPressureError:
            ended = True
            raise GrixError("overloaded", f"The queue of {target.id} is full.") from None
        except DeploymentUnavailableError:
            ended = True
            raise GrixError("no_target", f"{target.id} is not available.") from None
        except GrixError:
            raise
        except (RayActorError, WorkerCrashedError) as error:
            log.warning("replica of %s lost: %s", target.id, type(error).__name__)
            raise GrixError("replica_lost", "The replica that ran this request was lost.") from None
        except Exception as error:  # whatever the replica raised comes out as itself, not only as Ray's own
            log.warning("call to %s failed: %s: %s", target.id, type(error).__name__, ascii(str(error)[-300:]))
            raise GrixError("upstream_failed", "The replica that ran this request failed.") from None
        finally:
            if not ended:
                packets.cancel()

    async def _accepted(self, target: Target, packets: DeploymentResponseGenerator) -> Packet:
        """The first packet, unless :meth:`keep` sees meanwhile that nobody is left who could send it."""
        waiting = self._waiting[target.app]
        patience = asyncio.timeout(None)
        try:
            async with patience:
                waiting.add(patience)
                packet: Packet = await anext(packets)
                return packet
        except StopAsyncIteration:
            return ()
        except TimeoutError:
            raise self._starting(target, "has no replica now; another one is starting") from None
        finally:
            waiting.discard(patience)
            if not waiting:
                self._waiting.pop(target.app, None)

    def _starting(self, target: Target, said: str) -> GrixError:
        since_s = self._away_s.setdefault(target.app, self._now_s())
        left_s = start_left_s(target.start_s, self._now_s() - since_s)
        return GrixError("no_target", f"{target.id} {said}.", retry_after_s=left_s)

    async def probe(self, app: str) -> bool:
        """Whether a replica of the app makes tokens, within a limit."""
        handle = self._handles.get(app)
        if handle is None or self._bereft(app, handle):
            return False
        try:
            answer = handle.options(stream=False, method_name="probe").remote()
            return bool(await asyncio.wait_for(_resolve(answer), PROBE_LIMIT_S))
        except (TimeoutError, RayError, RayServeException):
            return False


def _told(frame: Frame, *, wakes: bool) -> Frame:
    return replace(frame, queued=True) if wakes and isinstance(frame, Head) else frame


async def _resolve(response: object) -> object:
    return await response  # type: ignore[misc]
