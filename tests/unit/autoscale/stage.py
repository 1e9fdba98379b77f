"""A scaling policy with a clock of its own, and a Serve that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext

from autoscale.ray_policy import REASONS, SETTING, QueueLatencyPolicy

SETTINGS = {"slots_per_replica": 16.0, "queue_above_ms": 250.0, "queue_below_ms": 50.0, "kv_above_ratio": 0.85}
QUIET = {"oldest_wait_ms": 0.0, "kv_cache_used_ratio": 0.0, "ongoing_requests": 0.0, "started_rps": 0.0}
#: A wall clock of another time than the monotonic one.
UNIX_S = 1.7e9


@dataclass
class FakeMeter:
    """Remembers the last value of each metric."""

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    sets: int = 0

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        key = (name, labels.get("reason", ""))
        self.values[key] = self.values.get(key, 0.0) + value

    def set(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.sets += 1
        self.values[name, labels.get("reason", "")] = value


class Stage:
    """A policy with a clock of its own; each replica's last numbers and when it wrote them, by name."""

    def __init__(self, target: int = 2, low: int = 1, high: int = 8, **kwargs: Any) -> None:
        self.now_s, self.unix_s = 100.0, UNIX_S
        self.meter = FakeMeter()
        self.policy = QueueLatencyPolicy("cloud-a", meter=self.meter, now_s=lambda: self.now_s, **kwargs)
        self.target, self.low, self.high = target, low, high
        self.running = target
        self.ongoing: Any = 0.0
        self.queued: Any = 0.0
        self.told: dict[str, list[tuple[float, dict[str, float]]]] = {}

    def says(self, name: str, numbers: Mapping[str, float], settings: Mapping[str, float] = SETTINGS) -> None:
        report = {**numbers, **{SETTING + key: value for key, value in settings.items()}}
        self.told.setdefault(name, []).append((self.unix_s, report))

    def all_quiet(self) -> None:
        for n in range(self.running):
            self.says(f"r{n}", QUIET)

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.unix_s += seconds

    def context(self) -> AutoscalingContext:
        raw: dict[str, dict[str, list[Any]]] = {}
        for name, reports in self.told.items():
            for at_s, numbers in reports:
                for key, value in numbers.items():
                    point = SimpleNamespace(timestamp=at_s, value=value)
                    raw.setdefault(key, {}).setdefault(name, []).append(point)
        return AutoscalingContext(
            deployment_id=None,
            deployment_name="QwenAgent",
            app_name="qwen-chat--01234567",
            current_num_replicas=self.running,
            target_num_replicas=self.target,
            running_replicas=[],
            total_num_requests=self.ongoing,
            total_queued_requests=self.queued,
            aggregated_metrics=None,
            raw_metrics=raw,
            capacity_adjusted_min_replicas=self.low,
            capacity_adjusted_max_replicas=self.high,
            policy_state={},
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=self.unix_s,
            config=AutoscalingConfig(min_replicas=1, max_replicas=8, target_ongoing_requests=16),
        )

    def decided(self) -> tuple[int, str]:
        replicas, state = self.policy(self.context())
        assert state == {}
        reasons = [r for r in REASONS if self.meter.values.get(("grix_scale_reason", r)) == 1.0]
        assert len(reasons) == 1
        assert self.meter.values["grix_scale_wanted_replicas", ""] == replicas
        return replicas, reasons[0]
