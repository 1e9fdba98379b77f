"""The one place that knows vLLM: starts an engine, feeds vLLM's own OpenAI layer, and turns its answers into frames.

Everything used of vLLM is pinned by ``tests/contract/test_vllm_contract.py``.
"""

from __future__ import annotations

import asyncio
import time
import types
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from starlette.datastructures import State
from starlette.requests import Request
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.usage.usage_lib import UsageContext
from vllm.v1.metrics.loggers import StatLoggerBase

from deployments import tool_calls
from deployments.engine_load import EngineLoad
from deployments.engine_watch import LOST
from deployments.terse_json import terse
from deployments.vllm_failures import failure_of, plain, stream_failure
from deployments.watched_llm import WATCH, ContextTooLong, Watch, WatchedLLM
from serve_app.core.prompting import inert_chat, is_large
from serve_app.core.snapshots import Load
from serve_app.ports import AgentCall, Body, Failure, Head, Kind, Packet, Tail, Usage

_STREAM_ERROR: Final = 'data: {"error"'


class Vllm:
    """One engine with vLLM's OpenAI layer in front of it."""

    def __init__(self, llm: WatchedLLM, state: State, agent: str) -> None:
        self.llm = llm
        self._state = state
        self._agent = agent
        self._special = tuple(sorted(set(_special_tokens(state))))
        self._load = EngineLoad()
        self._longest_prefill_s = 0.0

    @classmethod
    async def start(cls, agent: str, model_path: str, engine: dict[str, Any], resources: dict[str, Any]) -> Vllm:
        """Starts the engine and waits until it can answer.

        ``engine`` holds what is in the engine digest (``max_model_len``, ``dtype``, ``quantization``), ``resources``
        what is not (``max_num_seqs``, ``kv_cache_memory_bytes``, ...); names are vLLM's.
        """
        args = AsyncEngineArgs(
            model=model_path,
            served_model_name=[agent],
            scheduling_policy="priority",
            enable_log_requests=False,
            seed=0,
            **engine,
            **resources,
        )
        holder: list[Vllm] = []

        class Steps(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

            def log_engine_initialized(self) -> None: ...

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
                if holder:
                    holder[0].note(scheduler_stats, iteration_stats)

        llm = WatchedLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER, stat_loggers=[Steps])
        llm.pending, llm.last_token_s, llm.longest_prefill_s, llm.moves = {}, time.monotonic(), 0.0, 0
        frontend = Namespace(**(vars(FrontendArgs()) | vars(args)))
        frontend.enable_auto_tool_choice, frontend.tool_call_parser = True, tool_calls.register()
        # Arguments follow the tool's schema whether or not the caller says strict.
        frontend.tool_strict_level = "parameter"
        state = State()
        state.server = types.SimpleNamespace()
        await init_app_state(llm, state, frontend, await llm.get_supported_tasks())
        self = cls(llm, state, agent)
        state.openai_serving_models.model_name = self._model_name
        holder.append(self)
        await llm.warm_up()
        self._longest_prefill_s = llm.longest_prefill_s
        return self

    def _model_name(self, _lora: Any = None) -> str:
        """The agent that was asked for: an alias answers under its own name."""
        watch = WATCH.get()
        return watch.call.model if watch is not None else self._agent

    def note(self, scheduler: Any, iteration: Any) -> None:
        """Statistics of one engine step."""
        tokens = iteration.num_generation_tokens if iteration is not None else 0
        self.llm.note_iteration(tokens, scheduler.num_running_reqs if scheduler is not None else 0)
        if scheduler is not None:
            self._load.stepped(scheduler, time.monotonic())

    def load(self, now_s: float) -> Load:
        """What this engine's users wait, and what is in it now."""
        return self._load.read(now_s, idle=self.llm.unfinished == 0)

    def for_scaling(self, now_s: float) -> dict[str, float]:
        """The same for Serve's autoscaler."""
        return self._load.for_scaling(now_s)

    def forget_warm_up(self) -> None:
        """No user waited so far, and what is slow at its first use is no measure of a prefill."""
        self._load = EngineLoad()
        self.llm.longest_prefill_s = self._longest_prefill_s

    @property
    def kind(self) -> Kind:
        """What this model takes: one without a chat template only goes on with a text."""
        return "chat" if self._state.openai_serving_chat.renderer.tokenizer.chat_template else "completion"

    @property
    def max_model_len(self) -> int:
        return int(self.llm.model_config.max_model_len)

    def shutdown(self) -> None:
        self.llm.shutdown()

    async def call(self, call: AgentCall) -> AsyncGenerator[Packet, None]:
        """The frames of a call after ``Accepted``. Closing this generator aborts the work in the engine."""
        began_s, began_unix_s = time.monotonic(), time.time()
        # Time already spent in handles; clocks of two machines may disagree, so never negative.
        entered_s = began_s - max(0.0, began_unix_s - call.enqueued_unix_s)
        watch = Watch(call, entered_s)
        WATCH.set(watch)
        started = False
        self._load.entered(watch)
        try:
            frames = self._streamed(call, watch) if call.stream else self._whole(call, watch)
            async with asyncio.timeout(None) as watch.patience, aclosing(frames) as packets:
                async for packet in packets:
                    watch.patience = None
                    self._load.heard(watch, packet, time.monotonic())
                    started = True
                    yield packet
        except Exception as error:
            if self.llm.dead:
                failure = LOST
            elif watch.given_up:
                failure = Failure("queue_timeout", f"No engine was free within {call.queue_s:g} s.")
            elif isinstance(error, VLLMClientError | ValueError | TypeError):
                failure = await self._client_error(error, call)
            else:
                raise
            last = (self._tail(watch, failure),) if started else self._failed(watch, failure)
            self._load.heard(watch, last, time.monotonic())
            yield last
        finally:
            self._load.left(watch)

    def _request_of(self, call: AgentCall) -> ChatCompletionRequest | CompletionRequest:
        """The call as vLLM's OpenAI layer takes it."""
        body = {**call.body, "model": self._agent, "stream": call.stream}
        default = self._state.openai_serving_chat.default_sampling_params.get("temperature", 1.0)
        if body.get("temperature", default) == 0 and body.get("n", 1) > 1:
            # vLLM refuses several greedy answers; OpenAI gives the same one several times.
            body |= {"temperature": 1.0, "top_k": 1}
        if "response_format" in body:
            body["response_format"] = terse(body["response_format"])
        limit = min(call.max_tokens, self.max_model_len)
        if call.kind == "chat":
            body = inert_chat(body, self._special)
            return ChatCompletionRequest.model_validate({**body, "max_completion_tokens": limit})
        return CompletionRequest.model_validate({**body, "max_tokens": limit})

    async def _begin(self, call: AgentCall) -> Any:
        """What vLLM's OpenAI layer returns: a stream of events, a response, or an error."""
        apart = is_large(call.body)
        request = await asyncio.to_thread(self._request_of, call) if apart else self._request_of(call)
        headers = _request({"x-request-id": call.request_id, "x-vllm-priority": str(-call.priority)})
        if isinstance(request, ChatCompletionRequest):
            return await self._state.openai_serving_chat.create_chat_completion(request, headers)
        return await self._state.openai_serving_completion.create_completion(request, headers)

    async def _streamed(self, call: AgentCall, watch: Watch) -> AsyncGenerator[Packet, None]:
        events = await self._begin(call)
        if isinstance(events, ErrorResponse):
            yield self._failed(watch, failure_of(events))
            return
        started, held = False, []
        try:
            async for event in events:
                if event.startswith(_STREAM_ERROR):
                    failure = LOST if self.llm.dead else stream_failure(event)
                    yield (self._tail(watch, failure),) if started else self._failed(watch, failure)
                    return
                held.append(event)
                # A chat's first event has no text, and after the last token nothing is waited for.
                if watch.finished or (call.kind == "chat" and not started and len(held) == 1):
                    continue
                body = Body("".join(held).encode())
                held.clear()
                yield (body,) if started else (_head(watch), body)
                started = True
            last = (Body("".join(held).encode()), self._tail(watch, None))
            yield last if started else (_head(watch), *last)
        finally:
            await events.aclose()

    async def _whole(self, call: AgentCall, watch: Watch) -> AsyncGenerator[Packet, None]:
        answer = asyncio.ensure_future(self._begin(call))
        first = asyncio.ensure_future(watch.first.wait())
        try:
            await asyncio.wait({answer, first}, return_when=asyncio.FIRST_COMPLETED)
            started = not answer.done()
            if started:
                yield (_head(watch),)
            response = await answer
            failure = None
            if isinstance(response, ErrorResponse):
                failure = failure_of(response)
            elif not response.choices:
                failure = Failure("upstream_invalid", "The engine answered without choices.")
            if failure is not None:
                yield (self._tail(watch, failure),) if started else self._failed(watch, failure)
                return
            last = (Body(response.model_dump_json(exclude_unset=False).encode()), self._tail(watch, None))
            yield last if started else (_head(watch), *last)
        finally:
            first.cancel()
            answer.cancel()

    def _failed(self, watch: Watch, failure: Failure) -> Packet:
        """A failure before anything else was sent."""
        return Head(failure=failure), self._tail(watch, failure)

    def _tail(self, watch: Watch, failure: Failure | None) -> Tail:
        usage = None
        if watch.prompt_tokens is not None:
            usage = Usage(watch.prompt_tokens, watch.completion_tokens)
        return Tail(
            outcome="success" if failure is None else "failed",
            finish_reason=watch.finish_reason,
            usage=usage,
            queue_wait_ms=_since_ms(watch.entered_s, watch.scheduled_s),
            first_token_ms=_since_ms(watch.entered_s, watch.first_token_s),
            failure=failure,
        )

    async def _client_error(self, error: Exception, call: AgentCall) -> Failure:
        too_long = isinstance(error, ContextTooLong) or (
            isinstance(error, VLLMValidationError) and error.parameter in ("input_tokens", "input_text")
        )
        if not too_long:
            return Failure("bad_request", plain(error), getattr(error, "parameter", None))
        count = await asyncio.to_thread(self._count, call)
        return Failure(
            "context_length",
            f"This model's maximum context length is {self.max_model_len} tokens, but the messages have {count} "
            f"tokens with the prompt template, which leaves {max(0, self.max_model_len - count)} for the answer; "
            f"at least 1 is needed. Shorten the messages by {max(1, count + 1 - self.max_model_len)} tokens.",
            "messages" if call.kind == "chat" else "prompt",
        )

    def _count(self, call: AgentCall) -> int:
        """Exact tokens of a call's prompt; slow for long prompts, so only for the error message, in a thread."""
        tokenizer = self._state.openai_serving_chat.renderer.tokenizer
        if call.kind == "completion":
            prompt = call.body["prompt"]
            return len(prompt if isinstance(prompt, list) else tokenizer.encode(prompt))
        body = inert_chat(call.body, self._special)
        ids = tokenizer.apply_chat_template(
            body["messages"], tools=body.get("tools"), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return len(ids)


def _special_tokens(state: State) -> list[str]:
    """Every token that stands for itself: turns' ends, and markup such as ``<tool_call>`` that is not "special"."""
    tokenizer = state.openai_serving_chat.renderer.tokenizer
    return [str(t) for t in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab())]


def _request(headers: dict[str, str]) -> Request:
    """The least of an HTTP request that vLLM's OpenAI layer reads: headers and state."""
    raw = [(k.encode(), v.encode("latin-1", "replace")) for k, v in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw, "query_string": b""})


def _head(watch: Watch) -> Head:
    return Head(max_tokens=watch.max_tokens, queued=watch.queued)


def _since_ms(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round(max(0.0, end_s - start_s) * 1000, 2)
