"""QwenAgent: one replica, one vLLM engine. A shell: frames come from the adapter, verdicts from ``core.health``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import ray
from ray import serve

from autoscale.ray_policy import SETTING
from deployments.engine_start import LAST_WORDS_S, EngineStart, speed_key
from deployments.engine_watch import EngineWatch
from deployments.guard import Guard, step_back
from deployments.region_handle import RegionAway, RegionHandle
from deployments.vllm_adapter import Vllm
from serve_app.core.health import FRESH_S
from serve_app.core.reports import FRESH_S as REPORT_FRESH_S
from serve_app.core.reports import ReplicaReport
from serve_app.edge.agent_app import RESOURCES_VARIABLE, THREADS_VARIABLE
from serve_app.edge.engine_model import engine_model
from serve_app.ports import Accepted, AgentCall, Packet

log = logging.getLogger("ray.serve")

PUSH_S: Final = 1.0
#: An engine on CPU takes every core it is given; Routers, beats and reports of the same machine go before it, or a
#: region that is only busy would look dead.
ENGINE_NICE: Final = 5
#: What arrives later is no data any more; on a busy machine, where reports matter most, they take their time.
PUSH_LIMIT_S: Final = REPORT_FRESH_S
#: A report does not wait longer for the engine's proof.
PROOF_WAIT_S: Final = 0.5
#: Nor Serve, which ends a replica that is late three times; a busy machine adds its part to this.
HEALTH_WAIT_S: Final = 10.0


@serve.deployment
class QwenAgent:
    """Serves ``call`` (frames), ``probe`` and health. ``args`` is exactly what is in the engine digest."""

    async def __init__(self, args: dict[str, Any]) -> None:
        self._args = args
        began_s = time.monotonic()
        resources = json.loads(os.environ.get(RESOURCES_VARIABLE, "{}"))
        start = EngineStart.of_this_replica(speed_key(args["engine_digest"], os.environ))
        async with start.told():
            model, self._model_lease = await asyncio.to_thread(engine_model, args)
            async with start.turn():
                guard = Guard(start.left_s + LAST_WORDS_S)
                self._vllm = await Vllm.start(args["agent"], model, args["engine"], resources)
                if THREADS_VARIABLE in os.environ:
                    step_back(guard.engine(), ENGINE_NICE)
                await start.warm_up(self._vllm, guard.threads)
                self._vllm.forget_warm_up()
            # From here on the guard wants beats, which the watch gives.
            await asyncio.to_thread(guard.settle)
        self._start_s = time.monotonic() - began_s
        self._watch = EngineWatch(args["agent"], self._vllm.llm, guard)
        self._watching = asyncio.create_task(self._watch.run())
        self._offered_spilled_rps: float | None = None
        self._scaling: dict[str, float] = {}
        self._pushing = asyncio.create_task(self._push_on())
        log.info(
            "engine ready: agent=%s model=%s engine_digest=%s context=%d resources=%s labels=%s start_s=%.1f warm=%s",
            args["agent"],
            model,
            args["engine_digest"],
            self._vllm.max_model_len,
            json.dumps(resources, sort_keys=True),
            json.dumps(ray.get_runtime_context().get_node_labels(), sort_keys=True),
            self._start_s,
            start.warmth,
        )

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Settings that change in place: ``log_level``, ``stall_after_s``, ``fresh_s`` and ``scaling``, numbers."""
        self._watch.stall_after_s = float(user_config.get("stall_after_s", 3.0))
        self._watch.fresh_s = float(user_config.get("fresh_s", FRESH_S))
        self._scaling = {SETTING + name: float(value) for name, value in user_config.get("scaling", {}).items()}
        log.setLevel(user_config.get("log_level", "INFO"))

    async def call(self, call: AgentCall) -> AsyncIterator[Packet]:
        """One attempt: ``Accepted``, then the engine's frames. Closing it aborts the work."""
        yield (Accepted(call.target, call.release),)
        prompt = call.body.get("messages", call.body.get("prompt"))
        async with aclosing(self._watch.counted(self._vllm.call(call), prompt)) as packets:
            async for packet in packets:
                yield packet

    async def probe(self) -> bool:
        """Whether the engine makes tokens."""
        return await self._watch.proof()

    async def check_health(self) -> None:
        """Serve calls this every 2 s; raising takes the replica out and replaces it.

        An idle engine is asked for a token only every 10 s: what freezes without work is found that much later, or by
        its first request.
        """
        if not await self._watch.proven(HEALTH_WAIT_S):
            raise RuntimeError(f"the engine of {self._args['agent']} gives no tokens, or breaks every call")
        if self._pushing.done():
            raise RuntimeError(f"this replica reports no more: {self._pushing.exception()!r}")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For the scaling policy: this replica's load, what was wanted of its agent but served elsewhere, settings."""
        known = self._offered_spilled_rps
        spilled = {} if known is None else {"offered_spilled_rps": known}
        return {**self._vllm.for_scaling(time.monotonic()), **spilled, **self._scaling}

    async def _push_on(self) -> None:
        """Tells the RegionAgent each second how this replica is, where there is one, and at once that it has to end.

        No call waits for it.
        """
        context, region = serve.get_replica_context(), RegionHandle()
        while True:
            last_words = self._watch.ending.is_set()
            proven = await self._watch.proven(PROOF_WAIT_S)
            load = self._vllm.load(time.monotonic())
            names = (context.app_name, context.replica_id.unique_id, self._args["engine_digest"])
            report = ReplicaReport(*names, proven, load, self._start_s)
            try:
                self._offered_spilled_rps = await region.ask("push_replica", report, limit_s=PUSH_LIMIT_S)
            except RegionAway:
                self._offered_spilled_rps = None
            if last_words:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUSH_S):
                    await self._watch.ending.wait()

    def __del__(self) -> None:
        # A start that failed has made only some of these.
        for task in (getattr(self, "_watching", None), getattr(self, "_pushing", None)):
            if task is not None:
                task.cancel()
        if hasattr(self, "_vllm"):
            self._vllm.shutdown()
