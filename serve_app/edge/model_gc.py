"""What a host's cache of models may forget, forgotten: never what an engine holds, or what is being fetched."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from serve_app.core.model_address import parse_address
from serve_app.core.model_plan import Kept, to_forget
from serve_app.edge.model_cache import ModelCache, disk_faults


@dataclass(frozen=True, slots=True)
class Swept:
    """One thing in the cache, and what became of it."""

    name: str
    what: str
    size_bytes: int
    removed: bool


def sweep(cache: ModelCache, *, keep: int, older_s: float, now_unix_s: float, dry_run: bool) -> list[Swept]:
    """Removes versions that are neither in use nor among the last ``keep`` of their model (a way back that costs no
    bytes), and what fetches or faults have left that is older than ``older_s``.

    A version is in use while a process holds its lock, which the kernel takes from a dead one.

    Raises:
        StoreError: when the cache cannot be written.
    """
    with disk_faults(cache.root):
        if not dry_run:
            shutil.rmtree(_bin(cache), ignore_errors=True)
        swept = _versions(cache, keep, dry_run)
        for folder in _below(cache.root / "fetching"):
            swept.append(_leftover(cache, folder, folder.name, "begun", now_unix_s - older_s, dry_run))
        for folder in _below(cache.quarantine):
            key = folder.name.rpartition(".")[0]
            swept.append(_leftover(cache, folder, key, "quarantine", now_unix_s - older_s, dry_run))
        return swept


def _versions(cache: ModelCache, keep: int, dry_run: bool) -> list[Swept]:
    there: dict[str, Kept] = {}
    for folder in _below(cache.root / "versions"):
        address, key = cache.address(folder.name), folder.name
        # One without a readable entry is of no model, and no engine would be given it.
        model = parse_address(address).model if address is not None else key
        there[key] = Kept(key, model, cache.used_unix_s(key), _in_use(cache, key))
    forget = {version.key for version in to_forget(there.values(), keep)}
    swept = []
    for key, version in there.items():
        name = cache.version(key)
        if key in forget:
            swept.append(_removed(cache, name, key, ("fetch", "use"), "version", dry_run))
        else:
            swept.append(_kept(name, "version, in use" if version.in_use else "version"))
    return swept


def _leftover(cache: ModelCache, folder: Path, key: str, what: str, before_unix_s: float, dry_run: bool) -> Swept:
    touched_unix_s = max((found.st_mtime for found in _inside(folder)), default=0.0)
    if touched_unix_s > before_unix_s:
        return _kept(folder, what)
    return _removed(cache, folder, key, ("fetch",), what, dry_run)


def _removed(cache: ModelCache, folder: Path, key: str, locks: Sequence[str], what: str, dry_run: bool) -> Swept:
    """Removes a folder, unless its version has come into use, or is fetched, since it was looked at."""
    with ExitStack() as held:
        for kind in locks:
            lock = cache.try_lock(key, kind)
            if lock is None:
                return _kept(folder, f"{what}, in use")
            held.enter_context(lock)
        size = _size_bytes(folder)
        if not dry_run:
            # Out of the way by one rename, so that nobody waits for the locks, or finds a half, while it goes.
            away = _bin(cache) / f"{what}.{folder.name}"
            away.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(away)
    if not dry_run:
        shutil.rmtree(away, ignore_errors=True)
    return Swept(folder.name, what, size, True)


def _kept(folder: Path, what: str) -> Swept:
    return Swept(folder.name, what, _size_bytes(folder), False)


def _in_use(cache: ModelCache, key: str) -> bool:
    lock = cache.try_lock(key, "use")
    if lock is None:
        return True
    lock.free()
    return False


def _bin(cache: ModelCache) -> Path:
    return cache.root / "removed"


def _below(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _inside(folder: Path) -> Iterator[os.stat_result]:
    """All that is in a folder, which may move while it is looked at."""
    for inner, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            with suppress(OSError):
                yield (Path(inner) / name).lstat()


def _size_bytes(folder: Path) -> int:
    return sum(found.st_size for found in _inside(folder) if stat.S_ISREG(found.st_mode))
