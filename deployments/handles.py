"""Serve handles behind the ports of the request path: every call over one is limited and cancellable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.core.language import LanguageGuess
from serve_app.core.snapshots import Target
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Frame, Tail

log = logging.getLogger("ray.serve")

REFRESH_S: Final = 1.0
#: A replica proves itself within this time or not at all.
PROBE_LIMIT_S: Final = 5.0


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
            guess: LanguageGuess = await self._detect.remote(text[:2000], session_language)
        except (RayError, RayServeException) as error:
            log.warning("language detector failed: %s", type(error).__name__)
            raise GrixError("upstream_failed", "The language detector does not answer.") from None
        return guess


class HandleAgents:
    """The Agents port over handles, built off the request path when the table names a new app."""

    def __init__(self) -> None:
        self._handles: dict[str, DeploymentHandle] = {}

    async def keep(self, apps: Iterable[str]) -> None:
        """Builds missing handles and drops those the table no longer names. An app not deployed yet is tried again."""
        wanted = set(apps)
        for app in wanted - self._handles.keys():
            try:
                handle = await asyncio.to_thread(serve.get_app_handle, app)
            except (RayServeException, RayError) as error:
                log.info("app %s is not there yet: %s", app, type(error).__name__)
                continue
            # The first .options() must run on the loop that will use the handle.
            self._handles[app] = handle.options(stream=True, method_name="call")
        for app in self._handles.keys() - wanted:
            del self._handles[app]

    async def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        """Frames of one attempt; closing this generator cancels the call, queued or running.

        Raises:
            GrixError: ``no_target``, ``overloaded`` or ``upstream_failed``.
        """
        handle = self._handles.get(target.app)
        if handle is None:
            raise GrixError("no_target", f"{target.id} is not started here.", retry_after_s=5.0)
        packets = handle.remote(call)
        ended = False
        try:
            async for packet in packets:
                # After its tail a call has nothing left to cancel: an abort for each finished one would be a flood.
                ended = isinstance(packet[-1], Tail)
                for frame in packet:
                    yield frame
            ended = True
        except BackPressureError:
            ended = True
            raise GrixError("overloaded", f"The queue of {target.id} is full.") from None
        except DeploymentUnavailableError:
            ended = True
            raise GrixError("no_target", f"{target.id} is not available.", retry_after_s=5.0) from None
        except (RayError, RayServeException) as error:
            log.warning("call to %s failed: %s: %s", target.id, type(error).__name__, str(error)[-300:])
            raise GrixError("upstream_failed", "The replica that ran this request was lost.") from None
        finally:
            if not ended:
                packets.cancel()

    async def probe(self, app: str) -> bool:
        """Whether a replica of the app makes tokens, within a limit."""
        handle = self._handles.get(app)
        if handle is None:
            return False
        try:
            answer = handle.options(stream=False, method_name="probe").remote()
            return bool(await asyncio.wait_for(_resolve(answer), PROBE_LIMIT_S))
        except (TimeoutError, RayError, RayServeException):
            return False


async def _resolve(response: object) -> object:
    return await response  # type: ignore[misc]
