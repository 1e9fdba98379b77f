"""Only one coordinator serves at a time: a lock on a file, or a key in Redis that runs out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

#: A coordinator that stands still for longer has lost its place; the next one waits at most so long.
LEASE_S: Final = 5.0
#: How often a lease is renewed, or looked at.
RENEW_S: Final = 1.0

#: Renews, or frees with 0 ms, only what is still one's own.
_KEEP: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


class Lease(Protocol):
    async def take(self) -> bool:
        """Tries once; whether it is ours now."""
        ...

    async def keep(self) -> bool:
        """Whether it is still ours, renewed for :data:`LEASE_S` where leases run out."""
        ...

    async def free(self) -> None:
        """Lets the next one in at once."""
        ...


class FileLease:
    """A lock of the kernel on a file: it ends with its process, whatever ends that."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "lease"
        self._fd: int | None = None

    async def take(self) -> bool:
        """See :class:`Lease`.

        Raises:
            OSError: when the folder cannot be written.
        """
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return await self.keep()

    async def keep(self) -> bool:
        """A file that was removed or replaced is locked for nobody else any more."""
        if self._fd is None:
            return False
        try:
            same = os.path.samestat(os.fstat(self._fd), os.stat(self._file))
        except OSError:
            same = False
        if not same:
            await self.free()
        return same

    async def free(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RedisLease:
    """A key with a lifetime. ``token`` fences writes: what another has taken meanwhile is not ours to change."""

    def __init__(self, client: Redis, key: str, now_s: Callable[[], float]) -> None:
        self.key = key
        self.token = secrets.token_hex(16)
        self._client = client
        self._now_s = now_s
        self._until_s = 0.0

    async def take(self) -> bool:
        """See :class:`Lease`.

        Raises:
            RedisError, OSError: when Redis does not answer.
        """
        # Counted from before the call: the key in Redis lives at least as long as we think.
        began_s = self._now_s()
        taken = await self._client.set(self.key, self.token, nx=True, px=int(LEASE_S * 1000))
        self._until_s = began_s + LEASE_S if taken else 0.0
        return bool(taken)

    async def keep(self) -> bool:
        """A Redis that is away does not end a lease before it has run out."""
        began_s = self._now_s()
        if began_s >= self._until_s:
            return False
        try:
            kept = await cast(Any, self._client.eval(_KEEP, 1, self.key, self.token, str(int(LEASE_S * 1000))))
        except (RedisError, OSError, TimeoutError):
            return self._now_s() < self._until_s
        self._until_s = began_s + LEASE_S if kept else 0.0
        return bool(kept)

    async def free(self) -> None:
        self._until_s = 0.0
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await cast(Any, self._client.eval(_KEEP, 1, self.key, self.token, "0"))
