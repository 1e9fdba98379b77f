"""Contradictions inside one AgentPolicy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cluster_configs.faults import Path, Problem
from cluster_configs.fields import repeated, under
from cluster_configs.quantities import format_duration, format_size
from cluster_configs.scale_trigger import LOAD_WINDOW_S, ScaleTrigger

if TYPE_CHECKING:
    from cluster_configs.kind_agent import AgentPolicy, AgentSpec

#: What belongs to an engine, so that an alias must not write it.
_ENGINE_KEYS = (
    ("model", "model"),
    ("storage", "storage"),
    ("engine", "engine"),
    ("gpu", "gpu"),
    ("scale_triggers", "scaleTriggers"),
    ("scaling", "scaling"),
)


def of(policy: AgentPolicy) -> Iterator[Problem]:
    """Problems of the policy, with paths from the document's root."""
    spec = policy.spec
    if spec.engine_of is None:
        yield from _engine(spec)
        yield from _sharing(spec)
        yield from _triggers(spec)
    else:
        yield from _alias(policy)
    yield from _numbers(spec)
    for key, values in spec.cluster_selector.items():
        for i, first in repeated(list(values)):
            yield Problem(
                under("clusterSelector", key, i),
                f"'{values[i]}' is written twice; it is {key}[{first}] too",
                (under("clusterSelector", key),),
            )


def _alias(policy: AgentPolicy) -> Iterator[Problem]:
    spec = policy.spec
    for field, key in _ENGINE_KEYS:
        # Written at all counts, but not an empty list of triggers: that is what an alias has.
        if field in spec.model_fields_set and getattr(spec, field) not in ((), None):
            yield Problem(
                under(key),
                f"the agent uses the engine of {spec.engine_of}, so {key} has no effect here; "
                f"remove {key}, or remove engineOf",
                (under(key), under("engineOf")),
            )
    if spec.engine_of == policy.metadata.name:
        yield Problem(
            under("engineOf"),
            f"'{spec.engine_of}' is this agent itself; allowed: another agent that has an engine",
            (under("engineOf"), ("metadata", "name")),
        )


def _engine(spec: AgentSpec) -> Iterator[Problem]:
    for key, value in (("model", spec.model), ("storage", spec.storage)):
        if value is None:
            yield Problem(
                under(key),
                f"{key} is missing; an agent has model and storage, or engineOf: NAME of the agent with the engine",
                (under(key), under("engineOf")),
            )
    engine, gpu = spec.engine, spec.gpu
    kv_path, gpu_path = under("engine", "kvCacheMemory"), under("gpu")
    if gpu is None and engine.kv_cache_memory_bytes is None:
        yield Problem(
            kv_path,
            "without a gpu block the engine runs on CPU, where it would claim nearly all memory of the node; "
            "write a size such as 512Mi, or gpu: {vramRequired: SIZE}",
            (kv_path, gpu_path),
        )
    if gpu is None and engine.enforce_eager is False:
        yield Problem(
            under("engine", "enforceEager"),
            "without a gpu block the engine runs on CPU, where it would compile kernels, some only at the first "
            "request for logprobs, with a compiler the machine may not have; allowed: true, or gpu: "
            "{vramRequired: SIZE}",
            (under("engine", "enforceEager"), gpu_path),
        )
    if gpu is None and engine.tensor_parallel_size > 1:
        yield Problem(
            under("engine", "tensorParallelSize"),
            f"{engine.tensor_parallel_size} ranks need as many GPUs, but there is no gpu block; allowed: 1",
            (under("engine", "tensorParallelSize"), gpu_path),
        )
    if gpu is not None and gpu.mig_slice is not None and engine.tensor_parallel_size > 1:
        yield Problem(
            under("engine", "tensorParallelSize"),
            f"{engine.tensor_parallel_size} ranks cannot talk across MIG slices; allowed: 1 with migSlice",
            (under("engine", "tensorParallelSize"), gpu_path),
        )
    kv_bytes = engine.kv_cache_memory_bytes
    if gpu is not None and kv_bytes is not None and kv_bytes >= gpu.vram_required_bytes:
        yield Problem(
            kv_path,
            f"{format_size(kv_bytes)} of KV cache leaves nothing of vramRequired "
            f"{format_size(gpu.vram_required_bytes)} for weights; allowed: less than vramRequired",
            (kv_path, gpu_path),
        )
    if spec.max_tokens_default >= engine.max_model_len:
        yield Problem(
            under("maxTokensDefault"),
            f"{spec.max_tokens_default} leaves no room for a prompt in maxModelLen {engine.max_model_len}; "
            "allowed: less than maxModelLen",
            (under("maxTokensDefault"), under("engine", "maxModelLen")),
        )


def _sharing(spec: AgentSpec) -> Iterator[Problem]:
    """A GPU is shared only by a policy that says so, and only as far as its engines leave each other room."""
    engine, gpu = spec.engine, spec.gpu
    if gpu is None:
        return
    share, fraction = under("gpu", "share"), under("gpu", "fraction")
    if gpu.share != (gpu.fraction < 1):
        yield Problem(
            share if gpu.share else fraction,
            "the whole GPU is not shared; write fraction: SHARE, such as 0.5, or share: false"
            if gpu.share
            else f"{gpu.fraction:g} of a GPU leaves the rest to other engines, and a replica has its GPU alone unless "
            "the policy says share: true; allowed: 1, migSlice: PROFILE, or share: true",
            (share, fraction),
        )
    if not gpu.share or gpu.fraction == 1:
        return
    if gpu.mig_slice is not None:
        yield Problem(
            fraction,
            f"{gpu.fraction:g} of MIG slice {gpu.mig_slice} cannot be had, a slice is one replica's alone; "
            "allowed: migSlice or fraction",
            (fraction, under("gpu", "migSlice")),
        )
    if engine.tensor_parallel_size > 1:
        yield Problem(
            fraction,
            f"{gpu.fraction:g} of each of {engine.tensor_parallel_size} GPUs cannot be had; allowed: a fraction with "
            "tensorParallelSize 1",
            (fraction, under("engine", "tensorParallelSize")),
        )
    if engine.kv_cache_memory_bytes is None and engine.gpu_memory_utilization > gpu.fraction:
        yield Problem(
            under("engine", "gpuMemoryUtilization"),
            f"{engine.gpu_memory_utilization:g} is more than fraction {gpu.fraction:g}, so the engines that share the "
            "GPU would not all find their memory; allowed: at most fraction, or kvCacheMemory",
            (under("engine", "gpuMemoryUtilization"), fraction),
        )


def _numbers(spec: AgentSpec) -> Iterator[Problem]:
    if spec.max_replicas < spec.min_replicas:
        yield Problem(
            under("maxReplicas"),
            f"{spec.max_replicas} is less than minReplicas {spec.min_replicas}; allowed: minReplicas or more",
            (under("maxReplicas"), under("minReplicas")),
        )
    limits = spec.timeouts
    steps = (("queue", limits.queue_s), ("firstByte", limits.first_byte_s), ("total", limits.total_s))
    for (inner, inner_s), (outer, outer_s) in itertools.pairwise(steps):
        if outer_s < inner_s:
            yield Problem(
                under("timeouts", outer),
                f"{format_duration(outer_s)} is shorter than {inner} {format_duration(inner_s)}, which is part of it; "
                f"allowed: {inner} or longer",
                (under("timeouts", inner), under("timeouts", outer)),
            )


def _triggers(spec: AgentSpec) -> Iterator[Problem]:
    for i, trigger in enumerate(spec.scale_triggers):
        yield from _trigger(i, trigger)
    for i, up in enumerate(spec.scale_triggers):
        for j, down in enumerate(spec.scale_triggers):
            if up.metric == down.metric and up.above is not None and down.below is not None and down.below >= up.above:
                yield Problem(
                    under("scaleTriggers", j, "below"),
                    f"{down.below:g} is not under the {up.above:g} of scaleTriggers[{i}], so the agent would go "
                    "up and down at once; allowed: less than that",
                    (under("scaleTriggers", i), under("scaleTriggers", j)),
                )
    if spec.max_replicas > spec.min_replicas:
        reads: tuple[Path, ...] = (under("scaleTriggers"), under("maxReplicas"), under("minReplicas"))
        for action, never in (("scale_up", "more"), ("scale_down", "fewer")):
            if not any(t.action == action for t in spec.scale_triggers):
                yield Problem(
                    under("scaleTriggers"),
                    f"no trigger has action {action}, so there would never be {never} replicas although "
                    f"minReplicas is {spec.min_replicas} and maxReplicas {spec.max_replicas}; "
                    "add one, or make both equal",
                    reads,
                )


def _trigger(i: int, trigger: ScaleTrigger) -> Iterator[Problem]:
    here = under("scaleTriggers", i)
    side, other = ("above", "below") if trigger.action == "scale_up" else ("below", "above")
    if getattr(trigger, side) is None or getattr(trigger, other) is not None:
        yield Problem(here, f"{trigger.action} needs '{side}' and not '{other}'; write {side}: NUMBER", (here,))
    for key, value in (("above", trigger.above), ("below", trigger.below)):
        if trigger.metric == "kv_cache_used" and value is not None and value > 1:
            yield Problem(
                (*here, key),
                f"{value:g} is more than the whole cache; allowed: a share, so 85 % is 0.85",
                ((*here, key), (*here, "metric")),
            )
    if trigger.action == "scale_up" and trigger.cooldown_s is not None:
        message = "scale_up acts at once; a cooldown is for scale_down only; remove it"
        yield Problem((*here, "cooldown"), message, (here,))
    cooldown_s = trigger.cooldown_s
    if trigger.action == "scale_down" and cooldown_s is not None and cooldown_s < LOAD_WINDOW_S:
        window = format_duration(LOAD_WINDOW_S)
        yield Problem(
            (*here, "cooldown"),
            f"{format_duration(cooldown_s)} is shorter than the {window} over which load is averaged, "
            f"so one burst would be acted on twice; allowed: {window} or longer",
            (here,),
        )
