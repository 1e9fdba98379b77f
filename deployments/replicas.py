"""How many replicas a handle knows of: a call over a handle without any waits, so it is better not made.

Serve keeps this to itself; what is read here is pinned by ``tests/contract/test_serve_contract.py``.
"""

from __future__ import annotations

from ray.serve.handle import DeploymentHandle


def running_replicas(handle: DeploymentHandle) -> int | None:
    """Replicas the handle may send to now; ``None`` before it has heard of any."""
    if not handle.running_replicas_populated():
        return None
    serve_router = getattr(handle._router, "_asyncio_router", None)
    request_router = getattr(serve_router, "_request_router", None)
    return None if request_router is None else len(request_router.curr_replicas)
