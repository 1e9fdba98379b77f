"""GlobalCoordinator: one supervised actor of the control cluster. A shell around ``edge.coordinator``."""

from __future__ import annotations

import asyncio
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
        self._coordinator.start()

    async def check_health(self) -> None:
        """Who waits for the lease is well. Serve replaces one whose work ended by a fault of its own."""
        broken = None if self._coordinator is None else self._coordinator.broken
        if broken is not None:
            raise RuntimeError(f"the coordinator broke off: {broken!r}") from broken

    async def _stop(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.close()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.shutdown)
            self._metrics.server_close()
            self._metrics = None

    async def __del__(self) -> None:
        if hasattr(self, "_coordinator"):
            await self._stop()
