"""What Serve keeps to itself of replicas; what is read here is pinned by ``tests/contract/test_serve_contract.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle


def running_replicas(handle: DeploymentHandle) -> int | None:
    """Replicas the handle may send to now; ``None`` before it has heard of any.

    A call over a handle without any waits, so it is better not made.
    """
    if not handle.running_replicas_populated():
        return None
    serve_router = getattr(handle._router, "_asyncio_router", None)
    request_router = getattr(serve_router, "_request_router", None)
    return None if request_router is None else len(request_router.curr_replicas)


def own_settings() -> tuple[str, str, Mapping[str, Any]]:
    """Application and id of the replica that this process is, and its ``user_config``.

    Serve hands the last one over after ``__init__`` only.
    """
    context = serve.get_replica_context()
    return context.app_name, context.replica_id.unique_id, context._deployment_config.user_config
