"""Loads and parameters for tests of scaling: what is not said is a quiet agent of two replicas with 16 slots."""

from __future__ import annotations

from dataclasses import replace

from autoscale.queue_latency import LoadSnapshot, ReplicaLoad, ScaleParameters

PARAMETERS = ScaleParameters(min_replicas=1, max_replicas=8, slots_per_replica=16)
QUIET = ReplicaLoad(age_s=0.5, oldest_wait_ms=0.0, kv_cache_used_ratio=0.0, ongoing_requests=0.0, started_rps=0.0)


def parameters(**changes: object) -> ScaleParameters:
    return replace(PARAMETERS, **changes)  # type: ignore[arg-type]


def replica(**changes: object) -> ReplicaLoad:
    return replace(QUIET, **changes)  # type: ignore[arg-type]


def load(*replicas: ReplicaLoad, **changes: object) -> LoadSnapshot:
    """The load of these replicas (none: two quiet ones), all of which run and are wanted."""
    told = replicas or (QUIET, QUIET)
    whole = LoadSnapshot(
        now_s=1000.0,
        running_replicas=len(told),
        target_replicas=len(told),
        ongoing_requests=0.0,
        queued_requests=0.0,
        replicas=told,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]
