"""GlobalCoordinator: one supervised actor of the control cluster. A shell around ``edge.coordinator``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any
from wsgiref.simple_server import WSGIServer

from ray import serve

from serve_app.edge.control_metrics import serve_metrics
from serve_app.edge.coordinator import Coordinator, settings_of

log = logging.getLogger("ray.serve")


@serve.deployment
class GlobalCoordinator:
    """Serves regions and operators on its own port, whenever it holds the lease. No request passes it."""

    async def __init__(self) -> None:
        self._coordinator: Coordinator | None = None
        self._running: asyncio.Task[None] | None = None
        self._metrics: WSGIServer | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Begins anew with other settings, or refuses them and goes on with the old; the same ones change nothing."""
        settings = await asyncio.to_thread(settings_of, user_config)
        log.setLevel(user_config.get("logLevel") or "INFO")
        if self._coordinator is not None and self._coordinator.settings == settings:
            return
        await self._stop()
        self._coordinator = Coordinator(settings)
        if settings.metrics is not None:
            self._metrics = serve_metrics(settings.metrics, lambda: self._coordinator)
        self._running = asyncio.create_task(self._coordinator.run())

    async def status(self) -> dict[str, Any]:
        """Whether it serves; where it does not, why."""
        coordinator = self._coordinator
        serving = coordinator is not None and coordinator.hub is not None
        return {"serving": serving, "fault": "has no settings" if coordinator is None else coordinator.fault}

    async def check_health(self) -> None:
        """Who waits for the lease is well. Serve replaces one whose work ended by a fault of its own."""
        if self._running is not None and self._running.done():
            raise RuntimeError(f"the coordinator's task ended: {self._running}")

    async def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.shutdown)
            self._metrics.server_close()
        self._running = self._metrics = None

    async def __del__(self) -> None:
        if hasattr(self, "_running"):
            await self._stop()
