"""Real time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class RealClock:
    """The clock of a process."""

    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()

    def today(self) -> str:
        return datetime.now(UTC).date().isoformat()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
