"""A region's engine as the choice of target feels it: slots, one queue, tokens that take time, a prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from autoscale.latency_window import LatencyWindow
from benchmarks.simulate.clock import Clock
from benchmarks.simulate.traffic import Request
from serve_app.core.breaker import Entry
from serve_app.core.reports import ReplicaReport
from serve_app.core.snapshots import Load, Target


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second: of prompts that are not cached, and of one answer."""

    prefill: float = 10_000.0
    decode: float = 100.0

    def busy_s(self, prompt_tokens: int, output_tokens: int) -> float:
        return prompt_tokens / self.prefill + output_tokens / self.decode


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way: what an engine runs. ``attempt`` tells an attempt from the ones before it."""

    request: Request
    order: tuple[Target, ...] = ()
    index: int = 0
    attempt: int = 0
    entry: Entry = "call"
    #: The region where it came in, and which of its lives that was.
    came_in: str = ""
    epoch: int = 0
    sent_s: float = 0.0
    arrived_s: float = 0.0
    wait_ms: float = 0.0
    has_begun: bool = False

    @property
    def target(self) -> Target:
        return self.order[self.index]


@dataclass(frozen=True, slots=True)
class Heard:
    """What whoever sent a job hears: that it got a slot, its first token, its end, or that it waited for too long."""

    first: Callable[[Job], None]
    ended: Callable[[Job], None]
    timed_out: Callable[[Job], None]


class Prefixes:
    """What of which session the engine still has, least recently used first to go; bounded in tokens."""

    def __init__(self, room_tokens: int) -> None:
        self._room, self._used = room_tokens, 0
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def hit(self, request: Request) -> int:
        """Tokens of the prompt that need no work."""
        held = self._tokens.get(request.session, 0) if request.session is not None else 0
        return min(held, request.shared_tokens)

    def keep(self, request: Request) -> None:
        if request.session is None:
            return
        self._used -= self._tokens.pop(request.session, 0)
        tokens = request.prompt_tokens + request.output_tokens
        self._tokens[request.session] = tokens
        self._used += tokens
        while self._used > self._room:
            self._used -= self._tokens.popitem(last=False)[1]


class Engine:
    """``slots`` over ``replicas`` that share one queue; queued longer than ``queue_s`` is given back."""

    def __init__(
        self, clock: Clock, slots: int, replicas: int, speed: Speed, cache_tokens: int, queue_s: float
    ) -> None:
        self.slots, self.replicas = slots, replicas
        self._clock, self._speed, self._queue_s = clock, speed, queue_s
        self.prefixes = Prefixes(cache_tokens)
        self.running: dict[Job, Heard] = {}
        self._queue: OrderedDict[tuple[int, int], tuple[Job, Heard]] = OrderedDict()
        self._window = LatencyWindow()
        self.hit_tokens = self.shared_tokens = 0
        self.busy_s = 0.0
        self._died = False

    def submit(self, job: Job, heard: Heard) -> None:
        job.arrived_s = self._clock.now_s
        if len(self.running) < self.slots:
            self._start(job, heard)
            return
        self._queue[id(job), job.attempt] = (job, heard)
        self._clock.at(self._clock.now_s + self._queue_s, self._give_back, job, job.attempt)

    def _give_back(self, job: Job, attempt: int) -> None:
        found = self._queue.pop((id(job), attempt), None)
        if found is not None:
            self._window.waited((self._clock.now_s - job.arrived_s) * 1000, self._clock.now_s)
            found[1].timed_out(job)

    def _start(self, job: Job, heard: Heard) -> None:
        request, now_s = job.request, self._clock.now_s
        hit = self.prefixes.hit(request)
        self.hit_tokens += hit
        self.shared_tokens += request.shared_tokens
        self.running[job] = heard
        job.wait_ms = (now_s - job.arrived_s) * 1000
        self._window.waited(job.wait_ms, now_s)
        first_s = (request.prompt_tokens - hit) / self._speed.prefill
        took_s = first_s + request.output_tokens / self._speed.decode
        self.busy_s += took_s
        self._clock.at(now_s + first_s, self._first, job, heard)
        self._clock.at(now_s + took_s, self._end, job, heard)

    def _first(self, job: Job, heard: Heard) -> None:
        if not self._died:
            now_s = self._clock.now_s
            self._window.first_token((now_s - job.arrived_s) * 1000, now_s)
            heard.first(job)

    def _end(self, job: Job, heard: Heard) -> None:
        if self._died:
            return
        del self.running[job]
        self.prefixes.keep(job.request)
        self._window.ended(self._clock.now_s, failed=False)
        heard.ended(job)
        if self._queue:
            self._start(*self._queue.popitem(last=False)[1])

    def die(self) -> list[Job]:
        """Nothing more comes from here; the jobs that are lost with it."""
        self._died = True
        lost = [*self.running, *(job for job, _ in self._queue.values())]
        self.running.clear()
        self._queue.clear()
        return lost

    def reports(self, app: str, digest: str) -> list[ReplicaReport]:
        """What each replica pushes; they share slots and queue evenly."""
        now_s, parts = self._clock.now_s, self.replicas
        reading = self._window.read(now_s, (job.arrived_s for job, _ in self._queue.values()))
        waiting, running = len(self._queue), len(self.running)
        return [
            ReplicaReport(
                app=app,
                replica=str(i),
                engine_digest=digest,
                proven=True,
                load=Load(
                    queue_wait_p95_ms=reading.queue_wait_p95_ms,
                    oldest_wait_ms=reading.oldest_wait_ms,
                    waiting=(waiting + parts - 1 - i) // parts,
                    running=(running + parts - 1 - i) // parts,
                    kv_cache_used_ratio=None,
                    first_token_p95_ms=reading.first_token_p95_ms,
                    error_ratio=reading.error_ratio,
                ),
            )
            for i in range(parts)
        ]
