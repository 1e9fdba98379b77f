"""What is seen of one call inside the engine: budget enforced, times and tokens noted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.core.merging import merge_wait_s
from serve_app.ports import AgentCall

#: The scheduler takes what it has room for before a step begins, in well under this, however many come at once.
AT_ONCE_S: Final = 0.01


class ContextTooLong(VLLMClientError):
    """The prompt leaves no room for one token."""


@dataclass(slots=True)
class Watch:
    """What is seen of one call inside the engine. Times are monotonic seconds; ``None``: not yet."""

    call: AgentCall
    entered_s: float
    sent_s: float | None = None
    #: Seen to be scheduled, before the engine tells when.
    begun: bool = False
    #: What the wait for the engine ends with; ``None`` once it said something.
    patience: asyncio.Timeout | None = None
    given_up: bool = False
    first: asyncio.Event = field(default_factory=asyncio.Event)
    engine_id: str | None = None
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    #: When the scheduler had it; the same clock, in the engine's process.
    queued_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_reason: str | None = None
    #: The engine has nothing more for this call.
    finished: bool = False
    #: Deltas that were gathered may go on.
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def priority(self) -> int:
        return self.call.priority

    @property
    def width(self) -> int:
        """Requests inside the engine: one for each answer that is wanted."""
        return int(self.call.body.get("n") or 1)

    @property
    def queued(self) -> bool:
        """Whether the engine had no place for it when it came: what has one is scheduled with the next step."""
        if self.queued_s is None or self.scheduled_s is None:
            return False
        return self.scheduled_s - self.queued_s > AT_ONCE_S

    @property
    def queue_until_s(self) -> float:
        return self.entered_s + self.call.queue_s

    def give_up(self) -> None:
        """The engine was not free in time: the call ends, and with it its place in the queue."""
        if self.patience is not None:
            self.given_up = True
            self.patience.reschedule(0.0)
            self.patience = None

    def timed(self, metrics: Any) -> None:
        """Takes schedule and first-token time from vLLM's request statistics (zero there means not yet)."""
        if metrics is None:
            return
        if self.scheduled_s is None and metrics.scheduled_ts > 0:
            self.queued_s, self.scheduled_s = metrics.queued_ts, metrics.scheduled_ts
        if self.first_token_s is None and metrics.first_token_ts > 0:
            self.first_token_s = metrics.first_token_ts
            self.first.set()

    def saw(self, output: Any, *, deltas: bool) -> None:
        """Takes counts from one engine output."""
        self.timed(output.metrics)
        if output.prompt_token_ids is not None:
            self.prompt_tokens = len(output.prompt_token_ids)
        count = sum(len(o.token_ids) for o in output.outputs)
        self.completion_tokens = self.completion_tokens + count if deltas else count
        for one in output.outputs:
            self.finish_reason = one.finish_reason or self.finish_reason
        self.finished = output.finished
        if not self.first.is_set():
            self.first_token_s = time.monotonic()
            self.first.set()


#: Engine priority of the replica's own probe: before everything.
PROBE_PRIORITY: Final = -(10**6)
#: What took longer was preempted meanwhile; it must not make a frozen engine hard to tell for good.
LONGEST_SEEN_S: Final = 25.0
#: The call that this task serves.
WATCH: Final[ContextVar[Watch | None]] = ContextVar("grix_watch", default=None)


class WatchedLLM(AsyncLLM):  # type: ignore[misc]
    """AsyncLLM that enforces a call's token budget, notes what happens to it, and tells whether it lives."""

    pending: dict[str, Watch]
    last_token_s: float
    longest_prefill_s: float
    #: Steps that brought a token, or ran something on its way to one.
    moves: int

    @property
    def unfinished(self) -> int:
        """Requests in the engine, waiting and running."""
        return int(self.get_num_unfinished_requests())

    @property
    def dead(self) -> bool:
        return bool(self.errored)

    def fail(self) -> None:
        """The engine is given up: calls inside end with an error, and none comes in any more."""
        self.engine_core.resources.engine_dead = True
        self.output_processor.propagate_error(EngineDeadError())

    async def warm_up(self) -> None:
        """One token, for what is made at the first use; then the longest prefill that is one step of the engine.

        No step may take much longer than that one, so an engine is not taken for a stalled one at its first long
        prompt, which would go on to the next engine and be the end of that, too.
        """
        await self._one_token([1])
        began_s = time.monotonic()
        scheduler = self.vllm_config.scheduler_config
        longest = min(int(scheduler.max_num_batched_tokens), int(self.model_config.max_model_len) - 1)
        await self._one_token([1] * longest)
        self.longest_prefill_s = time.monotonic() - began_s

    async def probe(self, limit_s: float) -> bool:
        """Asks the engine for one token, before everything else; whether it came in time."""
        try:
            async with asyncio.timeout(limit_s):
                await self._one_token([1])
        except (TimeoutError, EngineDeadError):
            return False
        return True

    async def _one_token(self, prompt_token_ids: list[int]) -> None:
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        prompt = {"prompt_token_ids": prompt_token_ids}
        outputs = super().generate(prompt, params, f"probe-{time.monotonic_ns()}", priority=PROBE_PRIORITY)
        async with aclosing(outputs):
            async for _ in outputs:
                pass

    def generate(  # type: ignore[no-untyped-def]
        self, prompt, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        watch = WATCH.get()
        inner = super().generate(prompt, sampling_params, request_id, **kwargs)
        if watch is None:
            return inner
        if sampling_params.max_tokens is not None and sampling_params.max_tokens < 1:
            raise ContextTooLong("no room")
        watch.engine_id = request_id
        watch.max_tokens = sampling_params.max_tokens
        return self._watched(inner, watch)

    async def _watched(self, inner: AsyncGenerator[Any, None], watch: Watch) -> AsyncGenerator[Any, None]:
        assert watch.engine_id is not None
        self.pending[watch.engine_id] = watch
        watch.sent_s = time.monotonic()
        try:
            async for output in inner:
                watch.saw(output, deltas=watch.call.stream)
                yield output
                if watch.call.stream and not watch.finished:
                    await self._gather(watch)
        finally:
            self.pending.pop(watch.engine_id, None)
            await inner.aclose()

    async def _gather(self, watch: Watch) -> None:
        """Lets vLLM merge this call's deltas for a moment under load; its end cuts the wait short."""
        loop = asyncio.get_running_loop()
        wait_s = merge_wait_s(self.get_num_unfinished_requests(), loop.time())
        if wait_s == 0.0 or watch.engine_id not in self.output_processor.external_req_ids:
            return
        watch.go.clear()
        timer = loop.call_later(wait_s, watch.go.set)
        try:
            await watch.go.wait()
        finally:
            timer.cancel()

    def note_iteration(self, new_tokens: int, running: int) -> None:
        """After each engine step: proof of life, and first tokens of calls that are not streamed."""
        if new_tokens:
            self.last_token_s = time.monotonic()
        if new_tokens or running:
            # A long prompt is prefilled over several steps before its first token.
            self.moves += 1
        states = self.output_processor
        for engine_id, watch in list(self.pending.items()):
            if engine_id not in states.external_req_ids:
                watch.go.set()
            if watch.first.is_set():
                continue
            for internal_id in states.external_req_ids.get(engine_id, ()):
                state = states.request_states.get(internal_id)
                if state is not None:
                    watch.timed(state.stats)
            if watch.first_token_s is not None and watch.scheduled_s is not None:
                prefill_s = min(watch.first_token_s - watch.scheduled_s, LONGEST_SEEN_S)
                self.longest_prefill_s = max(self.longest_prefill_s, prefill_s)
