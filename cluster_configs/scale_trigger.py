"""When an agent gets more or fewer replicas, and how many at once: triggers and steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from cluster_configs.faults import shown
from cluster_configs.fields import Block, Seconds

Metric = Literal["queue_ms", "kv_cache_used"]
Threshold = Annotated[float, Field(gt=0, le=3_600_000)]

#: Load is averaged over so long. A quiet period that is shorter would act twice on the same data.
LOAD_WINDOW_S: Final = 10.0
QUIET_S: Final = 1800.0

_SETTING: Final = {
    ("queue_ms", "above"): "queue_above_ms",
    ("queue_ms", "below"): "queue_below_ms",
    ("kv_cache_used", "above"): "kv_above_ratio",
    ("kv_cache_used", "below"): "kv_below_ratio",
}

#: Names people give to the driver's view of GPU memory.
_DRIVER_MEMORY: Final = ("gpu_memory", "vram", "driver_memory", "memory_used", "gpumemory", "gpu_mem")


def is_driver_memory(metric: object) -> bool:
    """Whether a metric's name means the memory the driver shows as taken."""
    return isinstance(metric, str) and metric.lower().startswith(_DRIVER_MEMORY)


def _no_driver_memory(value: Any) -> Any:
    if is_driver_memory(value):
        raise ValueError(
            f"{shown(value)} is shown, never a trigger: vLLM reserves gpuMemoryUtilization of it at start, "
            "so a threshold at or under that always holds; allowed: queue_ms, kv_cache_used"
        )
    return value


class ScaleTrigger(Block):
    """``above`` or ``below`` a threshold (ms for ``queue_ms``, share for ``kv_cache_used``), then ``action``.

    ``cooldown_s`` is the quiet period of a ``scale_down``; ``None`` for ``scale_up``, which acts at once.
    """

    metric: Annotated[Metric, BeforeValidator(_no_driver_memory)]
    above: Threshold | None = None
    below: Threshold | None = None
    action: Literal["scale_up", "scale_down"]
    cooldown_s: Seconds | None = Field(
        alias="cooldown", default_factory=lambda data: QUIET_S if data["action"] == "scale_down" else None
    )


def default_triggers(max_queue_ms: int) -> tuple[ScaleTrigger, ...]:
    """Up when the queue is longer than targets are picked for or the KV cache nearly full; down after quiet."""
    written: tuple[dict[str, Any], ...] = (
        {"metric": "queue_ms", "above": float(max_queue_ms), "action": "scale_up"},
        {"metric": "kv_cache_used", "above": 0.85, "action": "scale_up"},
        {"metric": "queue_ms", "below": max_queue_ms / 5, "action": "scale_down"},
    )
    return tuple(ScaleTrigger.model_validate(one) for one in written)


class Scaling(Block):
    """How far one step goes, and what is kept free.

    ``headroom`` is a share of what is taken: 0.5 suits replicas that start slowly, 0 leaves it to the triggers.
    ``step_up`` is how many times the running replicas there may be after one step; ``step_down`` is the share of them
    that one step leaves at least, 0 for whatever the load needs.
    """

    headroom: Annotated[float, Field(ge=0, le=10)] = 0.0
    step_up: Annotated[float, Field(gt=1, le=100)] = 2.0
    step_down: Annotated[float, Field(ge=0, lt=1)] = 0.0


def quiet_s(triggers: Iterable[ScaleTrigger]) -> float:
    """How long it has to be quiet before replicas go: the longest cooldown, as each ``scale_down`` has to agree."""
    return max((t.cooldown_s for t in triggers if t.cooldown_s is not None), default=QUIET_S)


def settings(triggers: Iterable[ScaleTrigger], scaling: Scaling, slots: int) -> dict[str, float]:
    """Names and values of ``autoscale.queue_latency.ScaleParameters``; a trigger that is not there has no entry.

    The lowest threshold counts: any ``scale_up`` is enough, and every ``scale_down`` has to agree.
    """
    out = {
        "slots_per_replica": float(slots),
        "headroom_ratio": scaling.headroom,
        "step_up_ratio": scaling.step_up,
        "step_down_ratio": scaling.step_down,
    }
    for trigger in triggers:
        for side, value in (("above", trigger.above), ("below", trigger.below)):
            if value is not None:
                name = _SETTING[trigger.metric, side]
                out[name] = min(value, out.get(name, value))
    return out
