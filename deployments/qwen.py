"""QwenAgent: one replica, one vLLM engine. A shell: frames come from the adapter, verdicts from ``core.health``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import ray
from ray import serve

from deployments.vllm_adapter import Vllm
from serve_app.core.health import EngineView, judge
from serve_app.edge.model_files import local_model
from serve_app.edge.serve_config import RESOURCES_VARIABLE
from serve_app.ports import Accepted, AgentCall, Packet

log = logging.getLogger("ray.serve")

#: How often a dead engine is looked for: the replica ends at once, Serve starts another.
DEATH_WATCH_S: Final = 0.25
ENGINE_DIED_EXIT: Final = 70


@serve.deployment
class QwenAgent:
    """Serves ``call`` (frames), ``probe`` and health. ``args`` is exactly what is in the engine digest."""

    async def __init__(self, args: dict[str, Any]) -> None:
        self._args = args
        self._stall_after_s = 3.0
        began_s = time.monotonic()
        resources = json.loads(os.environ.get(RESOURCES_VARIABLE, "{}"))
        model = await asyncio.to_thread(local_model, args["model_path"])
        self._vllm = await Vllm.start(args["agent"], str(model), args["engine"], resources)
        self._death_watch = asyncio.create_task(self._watch_for_death())
        log.info(
            "engine ready: agent=%s model=%s engine_digest=%s context=%d resources=%s labels=%s start_s=%.1f",
            args["agent"],
            model,
            args["engine_digest"],
            self._vllm.max_model_len,
            json.dumps(resources, sort_keys=True),
            json.dumps(ray.get_runtime_context().get_node_labels(), sort_keys=True),
            time.monotonic() - began_s,
        )

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Settings that change in place: ``log_level`` and ``stall_after_s``."""
        self._stall_after_s = float(user_config.get("stall_after_s", 3.0))
        log.setLevel(user_config.get("log_level", "INFO"))

    async def _watch_for_death(self) -> None:
        """An engine that died ends this process: a replica without an engine must not take calls."""
        while not self._vllm.dead:
            await asyncio.sleep(DEATH_WATCH_S)
        log.error("the engine of %s died; this replica ends", self._args["agent"])
        os._exit(ENGINE_DIED_EXIT)

    def _view(self) -> EngineView:
        llm = self._vllm.llm
        return EngineView(
            now_s=time.monotonic(),
            last_token_s=llm.last_token_s,
            unfinished=self._vllm.unfinished,
            longest_prefill_s=llm.longest_prefill_s,
            stall_after_s=self._stall_after_s,
        )

    async def call(self, call: AgentCall) -> AsyncIterator[Packet]:
        """One attempt: ``Accepted``, then the engine's frames. Closing it aborts the work."""
        yield (Accepted(call.target, call.release),)
        async with aclosing(self._vllm.call(call)) as packets:
            async for packet in packets:
                yield packet

    async def probe(self) -> bool:
        """Whether the engine makes tokens: real ones of the last 2 s, else one asked for now."""
        view = self._view()
        verdict = judge(view)
        if verdict != "ask":
            return verdict == "alive"
        return await self._vllm.probe(view.stall_limit_s)

    async def check_health(self) -> None:
        """Serve calls this every 2 s; raising takes the replica out and replaces it."""
        if not await self.probe():
            raise RuntimeError(f"the engine of {self._args['agent']} gives no tokens")

    def load(self) -> dict[str, float | int | None]:
        """The scheduler's last numbers; ``None`` before the first step."""
        load = self._vllm.load
        return {
            "waiting": load.waiting,
            "running": load.running,
            "kv_cache_used_ratio": load.kv_cache_used_ratio,
        }

    def __del__(self) -> None:
        vllm = getattr(self, "_vllm", None)
        if vllm is not None:
            self._death_watch.cancel()
            vllm.shutdown()
