"""The autoscalers that are compared: the production policy and three others, each with its main knob."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ray.serve.autoscaling_policy import default_autoscaling_policy
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from autoscale.queue_latency import LoadSnapshot, Memory, ReplicaLoad, ScaleParameters, decide
from benchmarks.autoscale_replica import Engine, Report
from benchmarks.autoscale_seen import Metrics, Scale, Seen
from benchmarks.autoscale_shim import ServeScaler
from cluster_configs.load import SHIPPED, load_paths
from serve_app.edge.serve_config import render

SHORT_COOLDOWN_S: Final = 300.0
#: An autoscaler by request rate with the usual delays (SkyPilot's, for one); its rate is of the last minute.
QPS_DELAYS: Final = {"upscale_delay_s": 300.0, "downscale_delay_s": 1200.0}
#: Serve's own around its own policy.
ONGOING_DELAYS: Final = {"upscale_delay_s": 30.0, "downscale_delay_s": 600.0}
ONGOING_LOOK_BACK_S: Final = 30.0
#: Of the production policy: what is to be free, as a share of what is taken.
HEADROOMS: Final = (0.0, 0.2, 0.4, 0.6, 1.0)


@dataclass(frozen=True, slots=True)
class Pool:
    """What is scaled: the engine, what one replica can do of this trace, and what is deployed around it."""

    engine: Engine
    capacity_rps: float
    config: Mapping[str, Any]
    scaling: Mapping[str, float]

    def serve(self, **more: Any) -> AutoscalingConfig:
        with warnings.catch_warnings():
            # There is no other working knob for the interval yet.
            warnings.simplefilter("ignore", DeprecationWarning)
            return AutoscalingConfig(**{**self.config, **more})

    def metrics(self) -> Metrics:
        serve = self.serve()
        return Metrics(serve.metrics_interval_s, serve.look_back_period_s, serve.aggregation_function.value)


def production() -> tuple[dict[str, Any], dict[str, float]]:
    """What ``grix render`` writes for the chat agent: ``autoscaling_config`` without the name of the policy, and the
    policy's settings."""
    # What the engines load is of no account here, and the store of the shipped ones is elsewhere.
    rendered = render(load_paths([SHIPPED], {}), "cloud-a", http_host="127.0.0.1", http_port=8000, model="tiny-qwen")
    [app] = [a for a in rendered["applications"] if a["name"].startswith("qwen-chat--")]
    [agent] = [d for d in app["deployments"] if d["name"] == "QwenAgent"]
    config = {name: value for name, value in agent["autoscaling_config"].items() if name != "policy"}
    return config, dict(agent["user_config"].get("scaling", {}))


#: What the policy reads of a replica and this world has.
_TOLD: Final = tuple({f.name for f in fields(ReplicaLoad)} & {f.name for f in fields(Report)})


def _told(one: Report) -> dict[str, float | None]:
    return {name: getattr(one, name) for name in _TOLD}


class _QueueLatency:
    """``decide`` with its memory, as the adapter that Serve loads calls it."""

    def __init__(self, headroom_ratio: float, pool: Pool, **delays: float) -> None:
        config = pool.serve(**delays)
        self._scaler = ServeScaler(self._policy, config)
        own = {
            "slots_per_replica": pool.engine.slots,
            "headroom_ratio": headroom_ratio,
            # The world has no KV cache.
            "kv_above_ratio": None,
            "kv_below_ratio": None,
            "min_replicas": config.min_replicas,
            "max_replicas": config.max_replicas,
        }
        self._parameters = ScaleParameters(**{**pool.scaling, **own})
        self._memory = Memory()
        self._seen: Seen

    def __call__(self, seen: Seen) -> int:
        self._seen = seen
        return self._scaler.step(seen.now_s, seen.running, seen.target, seen.ongoing, seen.queued)

    def _policy(self, _: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        seen = self._seen
        load = LoadSnapshot(
            now_s=seen.now_s,
            running_replicas=seen.running,
            target_replicas=seen.target,
            ongoing_requests=seen.ongoing,
            queued_requests=seen.queued,
            replicas=tuple([ReplicaLoad(age_s=seen.age_s, **_told(one)) for one in seen.reports]),
        )
        decision = decide(load, self._parameters, self._memory)
        self._memory = decision.memory
        return decision.replicas, {}


def queue_latency(headroom_ratio: float, pool: Pool) -> Scale:
    """The production policy with the delays that are shipped."""
    return _QueueLatency(headroom_ratio, pool)


def short_cooldown(headroom_ratio: float, pool: Pool) -> Scale:
    """The same, but down after five quiet minutes."""
    return _QueueLatency(headroom_ratio, pool, downscale_delay_s=SHORT_COOLDOWN_S)


def ongoing(target_requests: float, pool: Pool) -> Scale:
    """Serve's own policy: so many ongoing requests to a replica."""
    config = pool.serve(target_ongoing_requests=target_requests, **ONGOING_DELAYS)
    scaler = ServeScaler(default_autoscaling_policy, config)
    return lambda seen: scaler.step(seen.now_s, seen.running, seen.target, seen.ongoing, seen.queued)


def qps(share: float, pool: Pool) -> Scale:
    """By request rate: each replica is to get this share of what it was measured to do."""
    rate_rps = 0.0

    def policy(_: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        return rate_rps / (share * pool.capacity_rps), {}

    scaler = ServeScaler(policy, pool.serve(**QPS_DELAYS))

    def scale(seen: Seen) -> int:
        nonlocal rate_rps
        rate_rps = seen.arrivals_rps
        return scaler.step(seen.now_s, seen.running, seen.target, seen.ongoing, seen.queued)

    return scale


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, and the values of its main knob that are tried."""

    title: str
    knob: str
    knobs: Sequence[float]
    make: Callable[[float, Pool], Scale]
    #: What it reads beside Serve's totals: waits of replicas cost time to gather.
    with_reports: bool = False
    look_back_s: float | None = None

    def metrics(self, pool: Pool) -> Metrics:
        mine = replace(pool.metrics(), with_reports=self.with_reports)
        return mine if self.look_back_s is None else replace(mine, look_back_s=self.look_back_s)


CONTENDERS: Final[Mapping[str, Contender]] = {
    "queue_latency": Contender("queue latency", "headroom", HEADROOMS, queue_latency, with_reports=True),
    "ongoing": Contender(
        "ongoing requests", "target", (6.0, 8.0, 10.0, 12.0), ongoing, look_back_s=ONGOING_LOOK_BACK_S
    ),
    "qps": Contender("requests a second", "of capacity", (0.5, 0.6, 0.7, 0.8, 0.9), qps),
    "short_cooldown": Contender("queue latency, 5 min", "headroom", HEADROOMS[::2], short_cooldown, with_reports=True),
}
