"""What Serve keeps to itself of replicas; what is read here is pinned by ``tests/contract/test_serve_contract.py``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

log = logging.getLogger("ray.serve")

#: Serve's controller names a handle within this time; what it names later is there at the next look.
FIND_LIMIT_S: Final = 5.0


class Finder:
    """Handles by name, from Serve's controller, which may hang: each name has one thread at a time, whoever waits."""

    def __init__(self, find: Callable[[str], DeploymentHandle], limit_s: float = FIND_LIMIT_S) -> None:
        self._find, self._limit_s = find, limit_s
        self._looking: dict[str, asyncio.Task[DeploymentHandle]] = {}

    async def found(self, names: Iterable[str]) -> dict[str, DeploymentHandle]:
        """Those of ``names`` that are there, within the limit; to be asked again for the others."""
        wanted = list(names)
        new = [name for name in wanted if name not in self._looking]
        for name in new:
            self._looking[name] = asyncio.create_task(asyncio.to_thread(self._find, name))
        if new:
            # Who was waited for once, in vain, is only looked at.
            await asyncio.wait([self._looking[name] for name in new], timeout=self._limit_s)
        told = {}
        for name in [name for name in wanted if name in self._looking and self._looking[name].done()]:
            try:
                told[name] = self._looking.pop(name).result()
            except (KeyError, RayServeException, RayError) as error:  # KeyError: no such app
                log.info("%s is not there yet: %s", name, type(error).__name__)
        return told


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
