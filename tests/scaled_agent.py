"""QwenAgent's surface as scaling sees it, without an engine: streams of a given length, and slots that they wait for.

In front of it an entry that sends one call for each HTTP request: ``GET /?seconds=S&app=APP`` answers two lines with
the process that ran it, one when it begins and one at its end.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

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
    """``slots_per_replica`` of its settings is how many calls run at once. It cannot start without what it needs."""

    def __init__(self, needs: str | None) -> None:
        if needs is not None and not Path(needs).exists():
            raise FileNotFoundError(needs)
        self._load = EngineLoad()
        self._scaling: dict[str, float] = {}
        self._slots: asyncio.Semaphore | None = None

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._scaling = {SETTING + name: float(value) for name, value in user_config["scaling"].items()}
        if self._slots is None:
            self._slots = asyncio.Semaphore(int(user_config["scaling"]["slots_per_replica"]))

    async def call(self, sent_unix_s: float, seconds: float) -> AsyncIterator[int]:
        one = Call(time.monotonic() - max(0.0, time.time() - sent_unix_s))
        self._load.entered(one)
        assert self._slots is not None
        try:
            async with self._slots:
                one.scheduled_s = one.first_token_s = time.monotonic()
                self._load.heard(one, (Head(),), one.scheduled_s)
                yield os.getpid()
                await asyncio.sleep(seconds)
                yield os.getpid()
        finally:
            self._load.left(one)

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {**self._load.for_scaling(time.monotonic()), **self._scaling}


@serve.deployment(name="Entry", max_ongoing_requests=1000)
class Entry:
    """Calls agents. Who leaves takes the call along, as in the Router."""

    async def __call__(self, request: Request) -> StreamingResponse:
        handle = await asyncio.to_thread(serve.get_deployment_handle, "QwenAgent", request.query_params["app"])
        seconds = float(request.query_params["seconds"])
        pids = handle.options(stream=True).call.remote(time.time(), seconds)
        first = await anext(pids)

        async def lines() -> AsyncIterator[str]:
            yield f"{first}\n"
            async for pid in pids:
                yield f"{pid}\n"

        return StreamingResponse(lines())


def build_agent(args: dict[str, Any]) -> serve.Application:
    return ScaledAgent.bind(args.get("needs"))


def build_entry(args: dict[str, Any]) -> serve.Application:
    return Entry.bind()
