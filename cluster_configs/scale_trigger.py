"""ScaleTrigger: one condition that asks for more or fewer replicas."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from cluster_configs.faults import shown
from cluster_configs.fields import Block, Seconds

Metric = Literal["queue_ms", "kv_cache_used"]
Threshold = Annotated[float, Field(gt=0, le=3_600_000)]

#: A quiet period shorter than the window over which load is averaged would act twice on the same data.
LOAD_WINDOW_S: Final = 30.0
QUIET_S: Final = 1800.0

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
