"""QwenAgent's surface as scaling sees it, without an engine: calls of a given length, and slots that they wait for.

In front of it an entry that sends one call for each HTTP request: ``GET /?seconds=S&app=APP`` answers the process that
ran it.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from autoscale.ray_policy import SETTING
from deployments.engine_load import EngineLoad
from serve_app.ports import Head


@dataclass(eq=False)
class Call:
    entered_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    begun: bool = False


@serve.deployment(name="QwenAgent")
class ScaledAgent:
    """``slots_per_replica`` of its settings is how many calls run at once."""

    def __init__(self) -> None:
        self._load = EngineLoad()
        self._scaling: dict[str, float] = {}
        self._slots: asyncio.Semaphore | None = None

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._scaling = {SETTING + name: float(value) for name, value in user_config["scaling"].items()}
        if self._slots is None:
            self._slots = asyncio.Semaphore(int(user_config["scaling"]["slots_per_replica"]))

    async def call(self, sent_unix_s: float, seconds: float) -> int:
        one = Call(time.monotonic() - max(0.0, time.time() - sent_unix_s))
        self._load.entered(one)
        assert self._slots is not None
        try:
            async with self._slots:
                one.scheduled_s = one.first_token_s = time.monotonic()
                self._load.heard(one, (Head(),), one.scheduled_s)
                await asyncio.sleep(seconds)
            return os.getpid()
        finally:
            self._load.left(one)

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {**self._load.for_scaling(time.monotonic()), **self._scaling}


@serve.deployment(name="Entry", max_ongoing_requests=1000)
class Entry:
    """Calls agents. Who leaves takes the call along, as in the Router."""

    async def __call__(self, request: Request) -> JSONResponse:
        handle = await asyncio.to_thread(serve.get_deployment_handle, "QwenAgent", request.query_params["app"])
        seconds = float(request.query_params["seconds"])
        return JSONResponse(await handle.call.remote(time.time(), seconds))


def build_agent(args: dict[str, Any]) -> serve.Application:
    return ScaledAgent.bind()


def build_entry(args: dict[str, Any]) -> serve.Application:
    return Entry.bind()
