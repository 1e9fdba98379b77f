"""Whether a region fits into this machine's memory, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
#: A Ray cluster that idles.
CLUSTER_BYTES: Final = round(1.1 * GIB)
#: An engine's replica and its own process, without weights and KV cache.
ENGINE_BYTES: Final = round(1.1 * GIB)
#: Serve's controller and proxy, a Router, a LanguageDetector: one process each.
THIN_BYTES: Final = 150 * MIB
SERVE_PROCESSES: Final = 2
#: RegionAgent and RegionGateway, in a region of a federation.
REGION_HELPERS: Final = 2


@dataclass(frozen=True, slots=True)
class EngineNeed:
    """One agent's engines. ``None``: not known (weights elsewhere), or on the GPU (KV cache)."""

    agent: str
    replicas: int
    weights_bytes: int | None
    kv_cache_bytes: int | None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a region needs, line by line, against what there is."""

    lines: tuple[tuple[str, int], ...]
    available_bytes: int
    unknown: tuple[str, ...]

    @property
    def needed_bytes(self) -> int:
        return sum(size for _, size in self.lines)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.available_bytes

    def text(self) -> str:
        """One sentence with every number."""
        parts = ", ".join(f"{name} {gib(size)}" for name, size in self.lines)
        told = f"memory: needs about {gib(self.needed_bytes)} GiB ({parts}), available {gib(self.available_bytes)} GiB"
        return told + (f"; not counted: {', '.join(self.unknown)}" if self.unknown else "")


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"


def budget(
    engines: Iterable[EngineNeed], *, routers: int, detectors: int, available_bytes: int, helpers: int = 0
) -> Budget:
    """Adds up a cluster: Ray's own, Serve's own processes, thin deployments, and every engine replica."""
    thin = SERVE_PROCESSES + routers + detectors + helpers
    lines = [("Ray cluster", CLUSTER_BYTES), (f"{thin} Serve processes", thin * THIN_BYTES)]
    unknown = []
    for need in engines:
        each = ENGINE_BYTES + (need.weights_bytes or 0) + (need.kv_cache_bytes or 0)
        if need.weights_bytes is None:
            unknown.append(f"weights of {need.agent}, which are fetched")
        lines.append((f"{need.replicas} x engine {need.agent}", need.replicas * each))
    return Budget(tuple(lines), available_bytes, tuple(unknown))


def available_bytes() -> int:
    """Memory that is free to use: the machine's, or the container's when that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        return max(0, min(free, limit - used))
    except (OSError, ValueError):
        return free
