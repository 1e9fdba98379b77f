"""What a cache forgets: never what a living process uses or fetches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_gc import sweep
from serve_app.edge.store_types import Untrue
from tests.model_stores import (
    WatchedStore,
    a_version,
    break_off,
    take,
    versions,
    why,
)


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return a_version(tmp_path, "v1")


HOLD = """
import sys
from pathlib import Path
from serve_app.edge.model_cache import ModelCache
cache = ModelCache(Path(sys.argv[1]))
lock = cache.use(sys.argv[2]) if sys.argv[3] == "use" else cache.fetch_lock(sys.argv[2], print)
print("held", flush=True)
sys.stdin.read()
"""


def holding(cache: ModelCache, key: str, kind: str) -> subprocess.Popen[str]:
    """A process that has a lock."""
    command = [sys.executable, "-c", HOLD, str(cache.root), key, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def swept(
    cache: ModelCache, keep: int = 0, now_unix_s: float = 2e9, dry_run: bool = False
) -> list[tuple[str, str, bool]]:
    done = sweep(cache, keep=keep, older_s=3600.0, now_unix_s=now_unix_s, dry_run=dry_run)
    return [(s.name.partition("-")[0], s.what, s.removed) for s in done]


def test_what_a_process_uses_stays_until_it_dies(store: WatchedStore, cache: ModelCache) -> None:
    take(store, cache).lease.free()
    holder = holding(cache, store.where.key, "use")
    try:
        assert swept(cache) == [("m_v1", "version, in use", False)]
        got = take(store, cache)
        got.lease.free()
        assert got.read_bytes == 0
    finally:
        holder.kill()
        holder.communicate()
    assert swept(cache, dry_run=True) == [("m_v1", "version", True)] and versions(cache) == ["m_v1"]
    assert swept(cache) == [("m_v1", "version", True)]
    assert swept(cache) == [] and versions(cache) == []
    assert sorted(p.name for p in cache.root.iterdir()) == ["fetching", "locks", "versions"]


def test_what_is_being_fetched_stays_until_its_process_dies(store: WatchedStore, cache: ModelCache) -> None:
    break_off(store, cache)
    holder = holding(cache, store.where.key, "fetch")
    try:
        assert swept(cache) == [("m_v1", "begun, in use", False)]
    finally:
        holder.kill()
        holder.communicate()
    assert swept(cache, now_unix_s=0.0) == [("m_v1", "begun", False)]
    assert swept(cache) == [("m_v1", "begun", True)]
    assert not cache.fetching(store.where.key).exists()


def test_the_last_used_versions_of_a_model_stay(tmp_path: Path, cache: ModelCache) -> None:
    for i, name in enumerate(("v1", "v2", "v3")):
        made = a_version(tmp_path, name)
        take(made, cache).lease.free()
        os.utime(cache.root / "locks" / f"{made.where.key}.use", (i, {"v1": 30, "v2": 10, "v3": 20}[name]))
    assert swept(cache, keep=2) == [("m_v1", "version", False), ("m_v2", "version", True), ("m_v3", "version", False)]
    assert versions(cache) == ["m_v1", "m_v3"]


def test_quarantine_is_for_a_while(store: WatchedStore, cache: ModelCache) -> None:
    (store.folder / "model-2.safetensors").write_bytes(b"short")
    with pytest.raises(Untrue):
        take(store, cache)
    key = store.where.key
    left = cache.quarantine / os.listdir(cache.quarantine)[0]
    assert sweep(cache, keep=2, older_s=3600.0, now_unix_s=left.stat().st_mtime, dry_run=False)[1].removed is False
    done = sweep(cache, keep=2, older_s=3600.0, now_unix_s=2e9, dry_run=False)
    assert [(s.name.startswith(key), s.what, s.removed) for s in done] == [
        (True, "begun", True),
        (True, "quarantine", True),
    ]
    assert why(cache) == []
