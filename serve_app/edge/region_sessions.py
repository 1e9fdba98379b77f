"""The sessions of one process through all its bundles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serve_app.edge.journal import Meter
from serve_app.edge.local_sessions import LocalSessions
from serve_app.edge.redis_client import connect
from serve_app.edge.redis_sessions import Op, RedisSessions, Why
from serve_app.ports import Sessions


class RegionSessions:
    """In Redis where the region has one; without, only languages are remembered, here."""

    def __init__(self, now_s: Callable[[], float], meter: Meter) -> None:
        self._local = LocalSessions(now_s)
        self._meter = meter
        self._shared: RedisSessions | None = None
        self._opened: tuple[str, str | None, int] | None = None

    def now(self) -> Sessions:
        return self._shared or self._local

    def take_over(self, key: str, carry: bytes) -> None:
        """Keeps a session that another region carried over; where there is no store it cannot be kept."""
        if self._shared is not None:
            self._shared.take_over(key, carry)

    async def configure(self, region: Mapping[str, Any]) -> None:
        """Takes a region's ``name`` and ``redis``; on the loop that serves.

        Raises:
            OSError: when the password file cannot be read. Nothing has changed then.
        """
        redis, name = region.get("redis"), region["name"]
        client, opened = None, None
        if redis is not None:
            file = redis.get("passwordFile")
            # The file's time tells a password that was changed in place.
            opened = (redis["url"], file, Path(file).stat().st_mtime_ns if file else 0)
            if opened == self._opened:
                return
            client = connect(redis["url"], file)

        def failed(op: Op, why: Why) -> None:
            self._meter.add("grix_session_store_errors_total", {"region": name, "op": op, "reason": why}, 1)

        before, self._shared, self._opened = self._shared, None, opened
        if client is not None:
            self._shared = RedisSessions(client, name, self._local, failed)
            self._shared.start()
        if before is not None:
            await before.close()
