"""What an engine needs of a node, and which need no Ready node meets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.core.reports import Node

GIB: Final = 1 << 30
#: A node's label: the MIG profile of every GPU that Ray counts there.
MIG_LABEL: Final = "grix.io/mig-slice"


@dataclass(frozen=True, slots=True)
class Needs:
    """What one engine of an agent needs of one node, in one of ``regions``. ``gpus`` 0: it runs on CPU.

    ``memory_bytes`` is what the engine is told to take of the node's memory; weights come on top, whose size nobody
    knows before they are there.
    """

    agent: str
    regions: tuple[str, ...]
    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: int = 0
    vram_per_gpu_bytes: int = 0
    #: Profile of the MIG slices that count as GPUs; ``None``: whole ones.
    mig_slice: str | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    """One requirement by its name in an AgentPolicy: what is wanted, what a node has."""

    name: str
    wanted: float
    has: float
    unit: str

    @property
    def met(self) -> bool:
        return self.has >= self.wanted

    def __str__(self) -> str:
        scale = GIB if self.unit == "Gi" else 1
        return f"{self.name} wants {self.wanted / scale:.4g}{self.unit}, it has {self.has / scale:.4g}{self.unit}"


def _checks(needs: Needs, node: Node) -> tuple[_Check, ...]:
    if needs.gpus == 0:
        return (
            _Check("engine.cpuThreads", needs.cpus, node.cpus, ""),
            _Check("engine.kvCacheMemory", needs.memory_bytes, node.memory_bytes, "Gi"),
        )
    size = "engine.tensorParallelSize" if needs.gpus > 1 else "gpu"
    gpus = node.gpu_count
    if needs.mig_slice != node.labels.get(MIG_LABEL):
        # Whole GPUs are no slices, and slices no whole GPUs, however much memory they have.
        size, gpus = f"gpu.migSlice {needs.mig_slice or 'none'}", 0
    return (
        _Check(size, needs.gpus, gpus, ""),
        _Check("gpu.vramRequired", needs.vram_per_gpu_bytes, node.vram_per_gpu_bytes, "Gi"),
    )


def unmet(needs: Needs, nodes: Iterable[Node]) -> tuple[str, ...]:
    """Why no node can carry the agent, by name of each requirement; empty when one can.

    What is told is measured on the node that comes nearest: it meets the most requirements.
    """
    ready = [n for n in nodes if n.ready and n.region in needs.regions]
    where = ", ".join(needs.regions) or "no region"
    if not ready:
        return (f"{needs.agent}: node: there is no Ready node in {where}",)
    best: Sequence[_Check] = ()
    nearest = ready[0]
    for node in ready:
        checks = _checks(needs, node)
        if all(c.met for c in checks):
            return ()
        if not best or _nearness(checks) > _nearness(best):
            best, nearest = checks, node
    place = f"{nearest.region}/{nearest.name}"
    return tuple(f"{needs.agent}: {c}; nearest is node {place} of {where}" for c in best if not c.met)


def _nearness(checks: Sequence[_Check]) -> tuple[int, float]:
    """How many are met, then how much of what is missing is there."""
    share = sum(min(1.0, c.has / c.wanted) for c in checks if not c.met)
    return sum(c.met for c in checks), share
