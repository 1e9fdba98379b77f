"""AgentPolicy: a named duty, the engine behind it, where it may run, and how it scales."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from cluster_configs import agent_problems
from cluster_configs.faults import Problem, shown
from cluster_configs.fields import (
    Block,
    Bytes,
    Count,
    Document,
    Items,
    LanguageCode,
    Metadata,
    Name,
    Ratio,
    Seconds,
    Text,
    Version,
    Word,
)
from cluster_configs.scale_trigger import ScaleTrigger, Scaling, default_triggers

Duty = Literal["chat", "worker", "coder", "embedding", "rerank", "edge"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["none", "awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "bitsandbytes", "compressed-tensors"]
SelectorKey = Literal["cloud", "region", "location", "role"]
Labels = Annotated[Items[Word], Field(min_length=1)]
Replicas = Annotated[int, Field(ge=0, le=10_000)]

_MODEL_PATH: Final = re.compile(
    r"s3://[a-z0-9][a-z0-9.-]+/\S+|file:///(?:.*\S)|embedded:[a-z0-9][a-z0-9-]*|hf:[\w.-]+/[\w.-]+@[\w./-]+|smollm2",
    re.ASCII,
)
_MIG: Final = re.compile(r"[1-7]g\.\d{1,3}gb", re.ASCII)


def _model_path(text: str) -> str:
    if _MODEL_PATH.fullmatch(text) is None:
        hint = "; a hub model needs its revision: add @main or a commit" if text.startswith("hf:") else ""
        raise ValueError(
            f"{shown(text)} names no model{hint}; allowed: s3://BUCKET/PATH, file:///PATH, embedded:NAME, "
            "hf:ORG/NAME@REVISION or smollm2"
        )
    return text


def _mig_slice(text: str) -> str:
    if _MIG.fullmatch(text) is None:
        raise ValueError(f"{shown(text)} is no MIG profile; allowed: such as 1g.10gb or 3g.40gb")
    return text


class Storage(Block):
    """Where the weights lie."""

    model_path: Annotated[str, AfterValidator(_model_path)]


class Engine(Block):
    """Engine options. What changes answers or the context limit is in the engine digest.

    ``kv_cache_memory_bytes`` is ``None`` when the KV cache takes what ``gpu_memory_utilization`` leaves it;
    ``enforce_eager`` is ``None`` when the hardware decides: :attr:`AgentSpec.eager`.
    """

    max_model_len: Count = 8192
    dtype: Dtype = "auto"
    quantization: Quantization = "none"
    gpu_memory_utilization: Ratio = 0.9
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 16
    kv_cache_memory_bytes: Bytes | None = Field(default=None, alias="kvCacheMemory")
    cpu_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    enforce_eager: bool | None = None
    enable_prefix_caching: bool = True


class Gpu(Block):
    """What one GPU must have. An agent without this block runs on CPU.

    A replica has its GPUs, or its MIG slice, alone. With ``share`` it takes ``fraction`` of one, and nothing but the
    engines' own ``gpuMemoryUtilization`` keeps them apart.
    """

    vram_required_bytes: Bytes = Field(alias="vramRequired")
    share: bool = False
    fraction: Ratio = 1.0
    mig_slice: Annotated[str, AfterValidator(_mig_slice)] | None = None


class Timeouts(Block):
    """Limits of one request: waiting for a slot, first byte, and everything. ``start_s`` is the engine's own: a
    replica that does not run by then is given up, and with it a new configuration that asks for it."""

    queue_s: Seconds = Field(default=10.0, alias="queue")
    first_byte_s: Seconds = Field(default=30.0, alias="firstByte")
    total_s: Seconds = Field(default=600.0, alias="total")
    start_s: Seconds = Field(default=1800.0, alias="start")


def _max_replicas(data: dict[str, Any]) -> int:
    return max(1, int(data["min_replicas"]))


def _triggers(data: dict[str, Any]) -> tuple[ScaleTrigger, ...]:
    # An alias has no engine of its own to scale.
    return () if data["engine_of"] is not None else default_triggers(data["max_queue_ms"])


class AgentSpec(Block):
    """An agent with an engine of its own has ``model`` and ``storage``; one with ``engine_of`` has neither.

    The order of fields matters: a default that follows another value stands after it.
    """

    version: Version
    duty: Duty
    engine_of: Name | None = None
    model: Text | None = None
    storage: Storage | None = None
    engine: Engine = Field(default_factory=Engine)
    gpu: Gpu | None = None
    cluster_selector: Mapping[SelectorKey, Labels] = Field(default_factory=dict)
    language_affinity: Mapping[LanguageCode, Name] = Field(default_factory=dict)
    min_replicas: Replicas = 1
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(default_factory=_max_replicas)
    max_queue_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 250
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    handover_queue: Annotated[int, Field(ge=0, le=100_000)] = 5
    strength: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    timeouts: Timeouts = Field(default_factory=Timeouts)
    max_tokens_default: Count = 1024
    scale_triggers: Items[ScaleTrigger] = Field(default_factory=_triggers)
    scaling: Scaling = Field(default_factory=Scaling)

    @property
    def eager(self) -> bool:
        """Whether the engine runs without compiled kernels: always on CPU, where there may be no compiler."""
        return self.gpu is None if self.engine.enforce_eager is None else self.engine.enforce_eager

    def selects(self, *, cloud: str, region: str, location: str, role: str) -> bool:
        """Whether the cluster selector lets a region with these facts carry the agent."""
        facts: dict[SelectorKey, str] = {"cloud": cloud, "region": region, "location": location, "role": role}
        return all(facts[key] in allowed for key, allowed in self.cluster_selector.items())

    @model_serializer(mode="wrap")
    def _without_engine(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        out: dict[str, Any] = handler(self)
        if self.engine_of is not None:
            out.pop("engine", None)
            out.pop("scaling", None)
        return out


class AgentPolicy(Document):
    """The document of kind AgentPolicy."""

    kind: Literal["AgentPolicy"] = "AgentPolicy"
    metadata: Metadata
    spec: AgentSpec

    def problems(self) -> Iterator[Problem]:
        """Contradictions between its values."""
        yield from agent_problems.of(self)
