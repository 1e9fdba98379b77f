"""A pool of replicas under an autoscaler on a virtual clock: slots, prompts, answers, the handle's queue, metrics.

* A replica runs ``slots`` answers and admits ``admitted`` requests; what is more waits in the handle, first come first
  served. Who calls picks the less loaded of two replicas by chance, as Serve's router does.
* Prompts are computed one after another, and answers of the replica stand still meanwhile: chunked prefill slows both,
  the work in all is the same. Answers then come at ``decode_tokens_s`` each.
* A new replica takes ``start_s`` before it serves. One that goes takes no more requests and ends what it admitted.
  It costs a GPU from its start to its end. Victims are chosen as by Serve: those that start first, then the newest.
* Who waits for ``give_up_s`` leaves, as at the path's queue timeout.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Final

from benchmarks.autoscale_replica import NEVER_S, Engine, Job, Replica, Report
from benchmarks.autoscale_seen import Metrics, Outcome, Scale, Seen
from benchmarks.autoscale_traces import MINUTE_S, Trace

#: A moment at which an answer ends is computed twice, and floats differ.
EPSILON_S: Final = 1e-9
#: Longer than any backlog that a capacity is measured with.
LONG_S: Final = 1e6


class World:
    """One run of a trace under one autoscaler."""

    def __init__(self, trace: Trace, engine: Engine, metrics: Metrics, scale: Scale, target_ms: float) -> None:
        self._trace, self._engine, self._metrics, self._scale = trace, engine, metrics, scale
        self._target_s = target_ms / 1000.0
        self._chance = random.Random(trace.name)
        self._handle: deque[Job] = deque()
        self._running: list[Replica] = []
        self._draining: set[Replica] = set()
        self._starting: dict[Replica, float] = {}
        #: (when, number, replica that wakes or is ready; ``None``: the tick).
        self._events: list[tuple[float, int, Replica | None]] = []
        self._number = count()
        self._target = 0
        self._arrived = 0
        self._arrivals: deque[tuple[float, int]] = deque()
        self._totals: deque[tuple[float, int, int]] = deque()
        self._reports: tuple[Report, ...] = ()
        #: When each request began, if somebody wants to know.
        self.begun_s: list[float] | None = None
        self.outcome = Outcome.of(trace)

    def run(self, replicas: int) -> Outcome:
        """The whole trace, beginning with so many replicas that are ready."""
        engine, trace, events = self._engine, self._trace, self._events
        self._target = replicas
        self._running = [Replica(0.0) for _ in range(replicas)]
        self._note(0.0)
        self._at(self._metrics.interval_s, None)
        for at_s, prompt, output in zip(trace.at_s, trace.prompt_tokens, trace.output_tokens, strict=True):
            while events[0][0] <= at_s:
                self._happen()
            self._arrived += 1
            self._arrive(at_s, (at_s, prompt / engine.prefill_tokens_s, output / engine.decode_tokens_s))
        while events[0][0] <= trace.span_s:
            self._happen()
        self._end(trace.span_s)
        return self.outcome

    def _at(self, when_s: float, who: Replica | None) -> None:
        heapq.heappush(self._events, (when_s, next(self._number), who))

    def _happen(self) -> None:
        now_s, _, who = heapq.heappop(self._events)
        if who is None:
            self._tick(now_s)
            self._at(now_s + self._metrics.interval_s, None)
        elif who in self._starting and self._starting[who] == now_s:
            del self._starting[who]
            self._running.append(who)
            # Serve's aggregate begins where all of its series have begun.
            self._totals.clear()
            self._pull(who, now_s)
            self._step(who, now_s)
            self._note(now_s)
        elif who.wake_s == now_s:
            who.wake_s = NEVER_S
            self._step(who, now_s)

    def _arrive(self, now_s: float, job: Job) -> None:
        running, most = self._running, self._engine.admitted
        if self._handle or not running:
            self._handle.append(job)
            return
        many = len(running)
        replica = running[0]
        if many > 1:
            first = int(self._chance.random() * many)
            replica, other = running[first], running[first - 1 - int(self._chance.random() * (many - 1))]
            if other.admitted < replica.admitted:
                replica = other
        if replica.admitted >= most:
            replica = min(running, key=lambda r: r.admitted)
            if replica.admitted >= most:
                self._handle.append(job)
                return
        replica.admitted += 1
        replica.queue.append(job)
        # Behind others its turn is planned already.
        if len(replica.queue) == 1:
            self._step(replica, now_s)

    def _pull(self, replica: Replica, now_s: float) -> None:
        """What waits in the handle, as far as there is room."""
        handle, most = self._handle, self._engine.admitted
        while handle and replica.admitted < most:
            job = handle.popleft()
            if now_s - job[0] > self._engine.give_up_s:
                self._left(job)
            else:
                replica.admitted += 1
                replica.queue.append(job)

    def _step(self, replica: Replica, now_s: float) -> None:
        """Ends answers that are done, begins the next prompt, and plans when to look again."""
        ends, queue, slots = replica.ends, replica.queue, self._engine.slots
        if now_s >= replica.busy_until_s:
            answering_s = now_s - replica.prompts_s + EPSILON_S
            before = len(ends)
            while ends and ends[0] <= answering_s:
                heapq.heappop(ends)
            if len(ends) < before:
                replica.admitted -= before - len(ends)
                if self._handle and not replica.is_draining:
                    self._pull(replica, now_s)
            while queue and len(ends) < slots:
                if self._begin(replica, queue.popleft(), now_s):
                    break
        if queue and len(ends) < slots:
            when_s = replica.busy_until_s
        elif ends:
            when_s = ends[0] + replica.prompts_s
        else:
            if replica.is_draining:
                self._gone(replica, now_s)
            return
        if when_s < replica.wake_s:
            replica.wake_s = when_s = max(when_s, now_s)
            heapq.heappush(self._events, (when_s, next(self._number), replica))

    def _begin(self, replica: Replica, job: Job, now_s: float) -> bool:
        sent_s, prompt_s, answer_s = job
        wait_s = now_s - sent_s
        if wait_s > self._engine.give_up_s:
            replica.admitted -= 1
            self._left(job)
            return False
        if wait_s > self._target_s:
            self.outcome.over[int(sent_s / MINUTE_S)] += 1
        if self.begun_s is not None:
            self.begun_s.append(now_s)
        heapq.heappush(replica.ends, now_s - replica.prompts_s + answer_s)
        replica.prompts_s += prompt_s
        replica.busy_until_s = now_s + prompt_s
        replica.prompt_sent_s = sent_s
        if self._metrics.with_reports:
            replica.waits.waited(wait_s * 1000.0, replica.busy_until_s)
        return True

    def _left(self, job: Job) -> None:
        self.outcome.left += 1
        self.outcome.over[int(job[0] / MINUTE_S)] += 1

    def _tick(self, now_s: float) -> None:
        """The controller decides on what was pushed one interval ago; then the next push is gathered."""
        while self._handle and now_s - self._handle[0][0] > self._engine.give_up_s:
            self._left(self._handle.popleft())
        for replica in self._running:
            while replica.queue and now_s - replica.queue[0][0] > self._engine.give_up_s:
                replica.admitted -= 1
                self._left(replica.queue.popleft())
        ongoing, queued = self._aggregated()
        seen = Seen(
            now_s,
            self._metrics.interval_s,
            len(self._running),
            self._target,
            ongoing,
            queued,
            self._rate(),
            self._reports,
        )
        self._apply(self._scale(seen), now_s)
        self._gather(now_s)

    def _gather(self, now_s: float) -> None:
        metrics = self._metrics
        waiting = len(self._handle)
        # Serve masks out what replicas hold that run no more.
        self._totals.append((now_s, waiting + sum(r.admitted for r in self._running), waiting))
        while self._totals[0][0] <= now_s - metrics.look_back_s:
            self._totals.popleft()
        self._arrivals.append((now_s, self._arrived))
        while self._arrivals[0][0] < now_s - metrics.rate_s:
            self._arrivals.popleft()
        if metrics.with_reports:
            self._reports = tuple([r.report(now_s) for r in self._running])

    def _aggregated(self) -> tuple[float, float]:
        totals = self._totals
        if not totals:
            return 0.0, 0.0
        ongoing, queued = [t[1] for t in totals], [t[2] for t in totals]
        if self._metrics.function == "mean":
            return sum(ongoing) / len(totals), sum(queued) / len(totals)
        pick = max if self._metrics.function == "max" else min
        return float(pick(ongoing)), float(pick(queued))

    def _rate(self) -> float:
        arrivals = self._arrivals
        if len(arrivals) < 2:
            return 0.0
        return (arrivals[-1][1] - arrivals[0][1]) / (arrivals[-1][0] - arrivals[0][0])

    def _apply(self, target: int, now_s: float) -> None:
        if target == self._target:
            return
        self._target = target
        here = len(self._running) + len(self._starting)
        for _ in range(target - here):
            replica = Replica(now_s)
            self._starting[replica] = now_s + self._engine.start_s
            self._at(now_s + self._engine.start_s, replica)
        for _ in range(here - target):
            if self._starting:
                victim, _ = self._starting.popitem()
                self._gone(victim, now_s)
                continue
            victim = self._running.pop()
            victim.is_draining = True
            self._draining.add(victim)
            self._step(victim, now_s)
        self._note(now_s)

    def _gone(self, replica: Replica, now_s: float) -> None:
        self.outcome.gpu_s += now_s - replica.began_s
        replica.wake_s = NEVER_S
        self._draining.discard(replica)

    def _note(self, now_s: float) -> None:
        self.outcome.steps.append((now_s, self._target, len(self._running)))

    def _end(self, now_s: float) -> None:
        for replica in (*self._running, *self._starting, *self._draining):
            self.outcome.gpu_s += now_s - replica.began_s


def capacity_rps(draw: Callable[[], tuple[int, int]], engine: Engine, requests: int = 3000) -> float:
    """What one replica does that always has more to do, measured between a tenth and nine tenths of ``requests``."""
    sizes = [draw() for _ in range(requests)]
    prompts, outputs = zip(*sizes, strict=True)
    trace = Trace("capacity", LONG_S, [0.0] * requests, prompts, outputs)
    patient = replace(engine, admitted=requests, give_up_s=NEVER_S)
    world = World(trace, patient, Metrics(LONG_S, LONG_S, with_reports=False), lambda seen: 1, 0.0)
    begun = world.begun_s = []
    world.run(1)
    first, last = requests // 10, requests * 9 // 10
    return (last - first) / (begun[last] - begun[first])
