"""A small world for whole stories of scaling: calls of one length, replicas with slots, Serve's own factors and delays.

Each replica measures with the production code, and the policy decides as in Serve's controller, each half second.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig

from deployments.engine_load import EngineLoad
from serve_app.ports import Head
from tests.unit.autoscale.stage import Stage

TICK_S: Final = 0.5
SETTINGS: Final = {"slots_per_replica": 4.0, "queue_above_ms": 250.0, "queue_below_ms": 50.0, "kv_above_ratio": 0.85}
LOOK_BACK_S: Final = 10.0
#: Calls that a replica takes for each of its slots.
ONGOING_PER_SLOT: Final = 4


@dataclass
class Call:
    """``leaves_s`` is when its caller stops to wait for it."""

    entered_s: float
    leaves_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    ends_s: float = 0.0
    begun: bool = False


@dataclass
class Replica:
    name: str
    load: EngineLoad = field(default_factory=EngineLoad)
    calls: list[Call] = field(default_factory=list)
    draining: bool = False


class World:
    """``history`` are the targets of Serve, with when; ``victims`` how many calls each replica had that had to go."""

    def __init__(
        self,
        *,
        service_s: float = 1.0,
        start_s: float = 5.0,
        low: int = 1,
        high: int = 8,
        cooldown_s: float = 60.0,
        settings: dict[str, float] = SETTINGS,
    ) -> None:
        self.service_s, self.start_s, self.settings = service_s, start_s, settings
        self.slots = int(settings["slots_per_replica"])
        self.stage = Stage(target=max(1, low), low=low, high=high)
        self.config = AutoscalingConfig(
            min_replicas=low,
            max_replicas=high,
            target_ongoing_requests=self.slots,
            upscale_delay_s=0,
            downscale_delay_s=cooldown_s,
        )
        self._policy = _apply_autoscaling_config(self.stage.policy)
        self._state: dict[str, Any] = {}
        self._names = itertools.count()
        self.replicas = [self._new() for _ in range(self.stage.target)]
        self.draining: list[Replica] = []
        self._starting: list[float] = []
        self.queue: deque[Call] = deque()
        self._ongoing: deque[tuple[float, float]] = deque()
        self.target = self.stage.target
        self.history: list[tuple[float, int]] = []
        self.victims: list[int] = []
        self.arrived = self.done = self.left = 0

    def _new(self) -> Replica:
        return Replica(f"r{next(self._names)}")

    @property
    def unix_s(self) -> float:
        """What Serve's delays are counted by."""
        return self.stage.unix_s

    @property
    def directions(self) -> int:
        """How often the way changed between up and down, the first way included."""
        targets = [target for _, target in self.history]
        ways = [b > a for a, b in itertools.pairwise([1, *targets]) if a != b]
        return len([key for key, _ in itertools.groupby(ways)])

    def run(self, seconds: float, arrivals: Iterable[float] = (), patience_s: float = 1e9) -> None:
        """Plays so long; ``arrivals`` are seconds from now."""
        began_s = self.stage.now_s
        coming = deque(sorted(arrivals))
        while self.stage.now_s < began_s + seconds - 1e-9:
            now_s = self.stage.now_s
            while coming and began_s + coming[0] <= now_s:
                coming.popleft()
                self.arrived += 1
                # Between two ticks nobody could serve it: that is no wait.
                self.queue.append(Call(now_s, now_s + patience_s))
            self._serve(now_s)
            self._report(now_s)
            self._scale(now_s)
            self.stage.passes(TICK_S)

    def _serve(self, now_s: float) -> None:
        ready = [at_s for at_s in self._starting if at_s <= now_s]
        self._starting = [at_s for at_s in self._starting if at_s > now_s]
        self.replicas += [self._new() for _ in ready]
        self.left += sum(c.leaves_s <= now_s for c in self.queue)
        self.queue = deque(c for c in self.queue if c.leaves_s > now_s)
        for one in (*self.replicas, *self.draining):
            for call in [c for c in one.calls if self._over(c, now_s)]:
                one.calls.remove(call)
                one.load.left(call)
        while self.queue and (one := self._freest()) is not None:
            call = self.queue.popleft()
            one.calls.append(call)
            one.load.entered(call)
        for one in (*self.replicas, *self.draining):
            running = [c for c in one.calls if c.scheduled_s is not None]
            for call in [c for c in one.calls if c.scheduled_s is None][: self.slots - len(running)]:
                call.scheduled_s = call.first_token_s = now_s
                call.ends_s = now_s + self.service_s
                one.load.heard(call, (Head(),), now_s)
        self.draining = [one for one in self.draining if one.calls]

    def _over(self, call: Call, now_s: float) -> bool:
        if call.scheduled_s is not None and call.ends_s <= now_s:
            self.done += 1
            return True
        gone = call.leaves_s <= now_s
        self.left += gone
        return gone

    def _freest(self) -> Replica | None:
        one = min(self.replicas, key=lambda r: len(r.calls), default=None)
        return one if one is not None and len(one.calls) < ONGOING_PER_SLOT * self.slots else None

    def _report(self, now_s: float) -> None:
        if now_s % 1.0 < TICK_S:
            self.stage.told = {}
            for one in self.replicas:
                self.stage.says(one.name, one.load.for_scaling(now_s), self.settings)
        self._ongoing.append((now_s, len(self.queue) + sum(len(r.calls) for r in self.replicas)))
        while self._ongoing[0][0] < now_s - LOOK_BACK_S:
            self._ongoing.popleft()
        self.stage.ongoing = sum(n for _, n in self._ongoing) / len(self._ongoing)
        self.stage.queued = float(len(self.queue))

    def _scale(self, now_s: float) -> None:
        self.stage.running, self.stage.target = len(self.replicas), self.target
        context = self.stage.context()
        context.config, context.policy_state = self.config, self._state
        wanted, self._state = self._policy(context)
        wanted = max(self.config.min_replicas, min(self.config.max_replicas, int(wanted)))
        if wanted == self.target:
            return
        self.history.append((now_s, wanted))
        for _ in range(wanted - self.target):
            self._starting.append(now_s + self.start_s)
        for _ in range(self.target - wanted):
            if self._starting:
                self._starting.pop()
                continue
            # As Serve does it on one node: the newest goes, takes no more calls and ends those that it has.
            victim = self.replicas[-1]
            self.victims.append(len(victim.calls))
            self.replicas.remove(victim)
            self.draining.append(victim)
        self.target = wanted


def every(period_s: float, seconds: float, first_s: float = 0.0) -> list[float]:
    """Arrivals at a steady rate."""
    return [first_s + n * period_s for n in range(int(seconds / period_s))]


def in_world_time(monkeypatch: Any, world: World) -> Callable[[], float]:
    """Serve's delays follow the world's clock."""
    from types import SimpleNamespace

    clock = SimpleNamespace(time=lambda: world.unix_s)
    monkeypatch.setattr("ray.serve.autoscaling_policy.time", clock)
    return clock.time
