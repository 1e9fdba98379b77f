"""What outlives a coordinator: its epoch, drains, the documents that were applied, and the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster_configs.kind_federation import Store as StoreSettings
from serve_app.core.fleet_events import Facts
from serve_app.core.rollout_store import history_of, rollout_of
from serve_app.edge.lease import FileLease, Lease, RedisLease
from serve_app.edge.redis_client import connect

FORMAT: Final = 1
#: Larger than any epoch that comes from clocks and counting, and exact in every JSON.
MOST_EPOCH: Final = 2**53
#: Of one file of the audit log, and how many older ones are kept.
LOG_BYTES: Final = 4 * 1024 * 1024
LOGS_KEPT: Final = 4
#: Lines of the audit log in a Redis.
LINES_KEPT: Final = 20_000

#: Stores facts if the lease is still ours and no later epoch has stored.
_SAVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'lease' end
local old = redis.call('HGET', KEYS[2], 'epoch')
if old and tonumber(old) > tonumber(ARGV[2]) then return 'epoch ' .. old end
redis.call('HSET', KEYS[2], 'epoch', ARGV[2], 'facts', ARGV[3])
return ''
"""


class StoreError(Exception):
    """The store cannot be read or written, or holds what is no facts."""


class FencedError(StoreError):
    """Another coordinator has taken over: this one must not serve on."""


class Store(Protocol):
    """Raises StoreError from everything."""

    async def load(self) -> Facts | None: ...

    async def save(self, facts: Facts) -> None: ...

    async def append(self, lines: Sequence[str]) -> None:
        """Adds lines to the audit log."""
        ...

    async def last(self, count: int) -> list[str]:
        """The last lines of the audit log, oldest first."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and the lease that lets one coordinator write it."""

    store: Store
    lease: Lease


def opened(settings: StoreSettings, federation: str, now_s: Callable[[], float] = time.monotonic) -> Opened:
    """The store at an address.

    Raises:
        StoreError: a folder that cannot be made, or a password file that cannot be read.
    """
    try:
        if settings.folder is not None:
            folder = Path(settings.folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Opened(FileStore(folder), FileLease(folder))
        client = connect(settings.url, settings.password_file)
    except OSError as error:
        raise StoreError(f"{settings.url}: {error}") from None
    prefix = f"grix:{{{federation}}}:control"
    lease = RedisLease(client, f"{prefix}:lease", now_s)
    return Opened(RedisStore(client, prefix, lease), lease)


# ---- facts as JSON: in stores and in backups ----


def facts_json(facts: Facts) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(facts)}


def facts_of(data: Any) -> Facts:
    """Facts from JSON.

    Raises:
        StoreError: naming the field that is wrong, and what is allowed.
    """
    if not isinstance(data, Mapping):
        raise StoreError(f"is {type(data).__name__}; allowed: an object as `backup` gives it")
    wanted = {"format", *(f.name for f in fields(Facts))}
    # Facts of a version without rollouts have none.
    data = {"rollout": "", "history": "", **data}
    if data.keys() != wanted:
        odd = sorted(map(str, data.keys() ^ wanted))
        raise StoreError(f"{', '.join(odd)}: unknown or missing; allowed: exactly {', '.join(sorted(wanted))}")
    if data["format"] != FORMAT:
        raise StoreError(f"format: {data['format']!r} is not known; allowed: {FORMAT}")
    epoch, drains = data["epoch"], data["drains"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= MOST_EPOCH:
        raise StoreError(f"epoch: {str(epoch)[:40]!r} is none; allowed: a whole number from 0 to 2**53")
    if not isinstance(drains, Mapping) or not all(isinstance(v, str) for pair in drains.items() for v in pair):
        raise StoreError("drains: is no object of texts; allowed: {REGION: who drained it}")
    for key in ("revision", "documents", "begun", "rollout", "history"):
        if not isinstance(data[key], str):
            raise StoreError(f"{key}: is {type(data[key]).__name__}; allowed: text")
    try:
        rollout_of(data["rollout"])
        history_of(data["history"])
    except ValueError as error:
        raise StoreError(str(error)) from None
    return Facts(**{**{key: data[key] for key in wanted - {"format"}}, "drains": dict(drains)})


def _parsed(text: str, where: str) -> Facts:
    try:
        return facts_of(json.loads(text))
    except (StoreError, ValueError) as error:
        raise StoreError(f"{where}: {error}; move it away to begin with nothing, and restore a backup then") from None


# ---- a folder ----


class FileStore:
    """Files that only their owner reads. Facts are replaced whole: after a crash there are the old or the new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "facts.json"
        self._log = folder / "audit.jsonl"

    async def load(self) -> Facts | None:
        return await asyncio.to_thread(self._load)

    def _load(self) -> Facts | None:
        try:
            text = self._file.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._file}: cannot be read: {error}") from None
        return _parsed(text, str(self._file))

    async def save(self, facts: Facts) -> None:
        await asyncio.to_thread(self._save, facts)

    def _save(self, facts: Facts) -> None:
        before = self._load()
        if before is not None and before.epoch > facts.epoch:
            raise FencedError(f"{self._file}: epoch {before.epoch} has stored after {facts.epoch}")
        temporary = self._file.with_suffix(".new")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                json.dump(facts_json(facts), out)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(self._file)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreError(f"{self._file}: cannot be written: {error}") from None

    async def append(self, lines: Sequence[str]) -> None:
        await asyncio.to_thread(self._append, lines)

    def _append(self, lines: Sequence[str]) -> None:
        try:
            with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as out:
                out.write("".join(f"{line}\n" for line in lines))
                size = out.tell()
            if size > LOG_BYTES:
                self._rotate()
        except OSError as error:
            raise StoreError(f"{self._log}: cannot be written: {error}") from None

    def _rotate(self) -> None:
        for number in range(LOGS_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._old(number).replace(self._old(number + 1))
        self._log.replace(self._old(1))

    def _old(self, number: int) -> Path:
        return self._folder / f"audit.{number}.jsonl"

    async def last(self, count: int) -> list[str]:
        return await asyncio.to_thread(self._last, count)

    def _last(self, count: int) -> list[str]:
        lines: list[str] = []
        for file in (self._log, *(self._old(n) for n in range(1, LOGS_KEPT + 1))):
            if len(lines) >= count:
                break
            with contextlib.suppress(FileNotFoundError):
                lines = file.read_text("utf-8", errors="replace").splitlines() + lines
        return lines[-count:]

    async def close(self) -> None:
        """Nothing is open between calls."""


# ---- a Redis ----


class RedisStore:
    """One hash with facts and their epoch, one list with the audit log."""

    def __init__(self, client: Redis, prefix: str, lease: RedisLease) -> None:
        self._client = client
        self._facts, self._log = f"{prefix}:facts", f"{prefix}:audit"
        self._lease = lease

    async def load(self) -> Facts | None:
        with _told():
            text = await cast(Any, self._client.hget(self._facts, "facts"))
        return None if text is None else _parsed(text, self._facts)

    async def save(self, facts: Facts) -> None:
        text = json.dumps(facts_json(facts))
        with _told():
            keys = (self._lease.key, self._facts)
            said = await cast(Any, self._client.eval(_SAVE, 2, *keys, self._lease.token, str(facts.epoch), text))
        if said == "lease":
            raise FencedError("the lease in Redis has run out, or is another coordinator's")
        if said:
            raise FencedError(f"{said} has stored after {facts.epoch}")

    async def append(self, lines: Sequence[str]) -> None:
        with _told():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.rpush(self._log, *lines)
                pipe.ltrim(self._log, -LINES_KEPT, -1)
                await pipe.execute()

    async def last(self, count: int) -> list[str]:
        with _told():
            return list(await cast(Any, self._client.lrange(self._log, -count, -1)))

    async def close(self) -> None:
        await self._client.aclose()


@contextlib.contextmanager
def _told() -> Any:
    """Redis' failures as the store's."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(f"Redis does not do it: {type(error).__name__}: {error}") from None
