"""An engine that does what it is told, behind the real Router: QwenAgent's surface without an engine.

The last user turn of a request is its script, JSON: ``{"attempts": [[STEP, ...], ...]}``; the n-th call with one
request id plays the n-th list, the last one again and again. Text that is no script is answered with ``GOOD``. Steps:

    ["wait", SECONDS]      nothing for so long            ["hang"]            nothing for ever
    ["accepted"]           the call is admitted           ["head"]            with the first token
    ["fail", REASON, RETRY_AFTER_S]  a head that fails    ["chunk", VALUE]    one event with this JSON
    ["say", TEXT]          one event with this content    ["raw", TEXT]       these bytes as one frame
    ["bytes", TEXT]        these bytes, one a frame       ["json", VALUE]     one whole JSON answer
    ["tail"]               it went well                   ["broken", REASON]  a tail with a failure
    ["raise"]              an exception                   ["exit"]            the process ends at once
    ["refuse", FIELD]      fails the head with 400 when the request has this field
    ["recall"]             says the request's messages, as JSON
    ["head", "queued"]     with the first token, of a call that waited for capacity

Every call leaves lines in a file of the stub's folder, so that a test can see what reached the worker, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from ray import serve

from deployments.engine_start import LAST_WORDS_S, EngineStart
from deployments.engine_watch import LOOK_S
from deployments.guard import Guard
from deployments.region_handle import RegionAway, RegionHandle
from serve_app.core.reports import ReplicaReport
from serve_app.core.snapshots import Load
from serve_app.ports import Accepted, AgentCall, Body, Failure, Frame, Head, Kind, Packet, Tail, Usage

USAGE = Usage(5, 2)
GOOD: list[list[Any]] = [["accepted"], ["head"], ["say", "one "], ["say", "two"], ["end"]]


def said(text: str, **fields: Any) -> dict[str, Any]:
    """A chunk with content."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "stub", "object": "chat.completion.chunk", "choices": [choice], **fields}


def whole(text: str) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "stub", "object": "chat.completion", "choices": [choice]}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def script_of(call: AgentCall, attempt: int) -> list[list[Any]]:
    """What this attempt shall do."""
    texts = [m["content"] for m in call.body.get("messages", []) if m["role"] == "user"]
    try:
        attempts = json.loads(texts[-1])["attempts"]
    except (ValueError, KeyError, TypeError, IndexError):
        return GOOD
    return list(attempts[min(attempt, len(attempts) - 1)])


async def beat(guard: Guard) -> None:
    while True:
        guard.beat()
        await asyncio.sleep(LOOK_S)


class ColdEngine:
    """What warms up: the file ``first-token-ms`` has as JSON how long each call takes, the last one for all later.

    Each call leaves a line in the file ``warm-ups.jsonl``.
    """

    kind: Kind = "chat"
    max_model_len = 2048

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0

    async def call(self, call: AgentCall) -> AsyncGenerator[Packet, None]:
        with (self._folder / "warm-ups.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "unix_s": time.time()}) + "\n")
        told = self._folder / "first-token-ms"
        each_ms = json.loads(told.read_text()) if told.is_file() else [0]
        await asyncio.sleep(each_ms[min(self._calls, len(each_ms) - 1)] / 1000)
        self._calls += 1
        yield (Head(),)
        yield (Tail("success"),)


@serve.deployment(name="QwenAgent")
class StubAgent:
    """``call``, ``probe``, ``load`` and health as QwenAgent has them; it always says that it is well.

    Its start and its guard are real ones.
    """

    async def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._running = 0
        start = EngineStart.of_this_replica("stub")
        async with start.told():
            async with start.turn():
                guard = Guard(start.left_s + LAST_WORDS_S)
                await start.warm_up(ColdEngine(self._folder), guard.threads)
            await asyncio.to_thread(guard.settle)
        self._beats = asyncio.create_task(beat(guard))
        self._pushes = asyncio.create_task(self._push_on())

    async def _push_on(self) -> None:
        """Reports as QwenAgent does; the file ``no-tokens`` in the folder is an engine that gives none."""
        context, region = serve.get_replica_context(), RegionHandle(1.0)
        while True:
            proven = not (self._folder / "no-tokens").exists()
            load = Load(oldest_wait_ms=0.0, waiting=0, running=self._running)
            report = ReplicaReport(context.app_name, context.replica_id.unique_id, "stub", proven, load)
            with contextlib.suppress(RegionAway):
                await region.ask("push_replica", report, limit_s=1.0)
            await asyncio.sleep(1.0)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Takes any settings."""

    def _note(self, call: AgentCall, what: str) -> None:
        line = json.dumps({"what": what, "unix_s": time.time(), "pid": os.getpid(), "id": call.request_id})
        with (self._folder / f"{call.request_id}.jsonl").open("a") as file:
            file.write(line + "\n")

    def _attempt(self, call: AgentCall) -> int:
        """How many calls with this id came before, at any replica."""
        file = self._folder / f"{call.request_id}.jsonl"
        return file.read_text().count('"called"') if file.is_file() else 0

    async def call(self, call: AgentCall) -> AsyncIterator[Packet]:
        script = script_of(call, self._attempt(call))
        self._note(call, "called")
        if "stream_options" in call.body:
            self._note(call, "stream_options")
        self._running += 1
        ended = "aborted"
        try:
            for step, *values in script:
                if step in ("tail", "end", "broken", "fail"):
                    # Noted before it is said: from here on nothing can be aborted.
                    ended = "finished"
                async for frame in self._play(call, step, values):
                    yield (frame,)
            ended = "finished"
        except RuntimeError:
            ended = "raised"
            raise
        finally:
            self._running -= 1
            self._note(call, ended)

    async def _play(self, call: AgentCall, step: str, values: list[Any]) -> AsyncIterator[Frame]:
        if step == "wait":
            await asyncio.sleep(float(values[0]))
        elif step == "hang":
            await asyncio.Event().wait()
        elif step == "raise":
            raise RuntimeError("told to")
        elif step == "exit":
            self._note(call, "exit")
            os._exit(7)
        elif step == "accepted":
            yield Accepted(call.target, call.release)
        elif step == "refuse":
            if values[0] in call.body:
                failure = Failure("bad_request", f"unknown field {values[0]}", values[0])
                yield Head(failure=failure)
                yield Tail("rejected", failure=failure)
        elif step in ("fail", "broken"):
            failure = Failure(values[0], "told to", None, values[1] if len(values) > 1 else None)
            if step == "fail":
                yield Head(failure=failure)
            yield Tail("failed", usage=USAGE, failure=failure)
        else:
            for frame in frames_of(call, step, values):
                yield frame

    async def probe(self) -> bool:
        return True

    async def check_health(self) -> None:
        """Never raises: a lying worker is what tests need."""

    def load(self) -> dict[str, float | int | None]:
        return {"waiting": 0, "running": self._running, "kv_cache_used_ratio": None}


def frames_of(call: AgentCall, step: str, values: list[Any]) -> list[Frame]:
    """The frames of a step that only says something. ``end`` is how a good answer ends, streamed or not."""
    good = Tail("success", "stop", USAGE, 1.0, 2.0)
    if step == "head":
        return [Head(max_tokens=call.max_tokens, queued="queued" in values)]
    if step == "tail":
        return [good]
    if step == "recall":
        return [Body(event(said(json.dumps(call.body["messages"]))))]
    if step == "say":
        return [Body(event(said(values[0])))] if call.stream else []
    if step == "chunk":
        return [Body(event(values[0]))]
    if step == "raw":
        return [Body(values[0].encode())]
    if step == "bytes":
        return [Body(bytes([b])) for b in values[0].encode()]
    if step == "json":
        return [Body(json.dumps(values[0]).encode())]
    if step == "end" and call.stream:
        return [Body(b"data: [DONE]\n\n"), good]
    if step == "end":
        return [Body(json.dumps(whole("one two")).encode()), good]
    raise ValueError(f"no such step: {step}")


def build(args: dict[str, Any]) -> serve.Application:
    """The application; ``args`` holds the folder for notes."""
    return StubAgent.bind(args["folder"])
