"""The limits of one Router through all its bundles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from serve_app.edge.limits import LocalLimits
from serve_app.edge.redis_client import connect
from serve_app.edge.shared_limits import SharedLimits
from serve_app.ports import Limits


class RegionLimits:
    """In Redis where the region has one, else here. Requests that run stay counted whatever changes."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._local = LocalLimits(now_s)
        self._shared: SharedLimits | None = None
        self._opened: tuple[str, str | None, int] | None = None

    def now(self) -> Limits:
        return self._shared or self._local

    @property
    def redis(self) -> Literal["up", "down"] | None:
        """Whether the region's Redis answers this Router; ``None`` where there is none."""
        if self._shared is None:
            return None
        return "up" if self._shared.up else "down"

    async def configure(self, region: Mapping[str, Any]) -> None:
        """Takes a region's ``redis`` and ``routers``; on the loop that serves.

        Raises:
            OSError: when the password file cannot be read. Nothing has changed then.
        """
        redis = region.get("redis")
        client, opened = None, None
        if redis is not None:
            file = redis.get("passwordFile")
            # The file's time tells a password that was changed in place.
            opened = (redis["url"], file, Path(file).stat().st_mtime_ns if file else 0)
            if opened == self._opened:
                return
            client = connect(redis["url"], file)
        before, self._shared, self._opened = self._shared, None, opened
        self._local.share = max(1, int(region.get("routers", 1)))
        if client is not None:
            self._shared = SharedLimits(client, region["name"], self._local)
            self._shared.start()
        if before is not None:
            await before.close()
