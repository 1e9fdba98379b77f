"""Folders that look like models, a store that writes down what it is asked, and a fetch with small parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.core.model_address import Address, parse_address
from serve_app.core.model_manifest import MANIFEST, StoredFile, manifest_of
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_fetch import Fetched, fetch
from serve_app.edge.model_store import push
from serve_app.edge.store_folder import FolderStore
from serve_app.edge.store_types import Limits, NotThere

#: Small parts, no pauses; two threads, so that what is done in parallel is.
LIMITS = Limits(parallel=2, part_bytes=1000, attempts=3, pause_s=0.0, stall_s=20.0)
SHARDS = {"model-1.safetensors": 3500, "model-2.safetensors": 2000}

Lie = Callable[[int, int], Iterable[bytes]]


def bytes_of(name: str, size: int) -> bytes:
    """Bytes that no two files, or places in a file, have in common."""
    return b"".join(hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(size // 32 + 1))[:size]


def make_model(folder: Path, shards: dict[str, int] = SHARDS, **texts: str) -> Path:
    """A model of several shards; ``texts`` replaces other files (``_`` for ``.``)."""
    folder.mkdir(parents=True)
    for name, size in shards.items():
        (folder / name).write_bytes(bytes_of(name, size))
    index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(shards)}}
    texts = {"config_json": "{}", "tokenizer_json": "{}", "empty_txt": ""} | texts
    for name, text in texts.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class WatchedStore(FolderStore):
    """A folder as a store that writes down each read, and lies or fails where it is told to.

    ``reads`` has (name, offset, bytes asked for); ``lies`` gives what comes instead of a file, once each.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.reads: list[tuple[str, int, int]] = []
        self.lies: dict[str, list[Lie]] = {}
        self.before_manifest: list[Callable[[], None]] = []

    @property
    def where(self) -> Address:
        return parse_address(self.address)

    def read(self, name: str, offset: int, size_bytes: int, total_bytes: int) -> Generator[bytes, None, None]:
        self.reads.append((name, offset, size_bytes))
        if self.lies.get(name):
            yield from self.lies[name].pop(0)(offset, size_bytes)
        else:
            yield from super().read(name, offset, size_bytes, total_bytes)

    def read_whole(self, name: str, most_bytes: int) -> bytes:
        if self.before_manifest:
            self.before_manifest.pop(0)()
        return super().read_whole(name, most_bytes)

    def rewrite_manifest(self, **files: bytes) -> None:
        """Replaces files (``_`` for the last ``.``) and the manifest, as nobody should."""
        for name, data in files.items():
            (self.folder / ".".join(name.rsplit("_", 1))).write_bytes(data)
        paths = [p for p in content_of(self.folder) if p != MANIFEST]
        some = [(p, (self.folder / p).read_bytes()) for p in paths]
        made = manifest_of(StoredFile(p, len(data), hashlib.sha256(data).hexdigest()) for p, data in some)
        (self.folder / MANIFEST).write_text(made.text())


def take(store: WatchedStore, cache: ModelCache, told: list[str] | None = None, limits: Limits = LIMITS) -> Fetched:
    """Fetches a version; what it needs is asked of ``store``, and nothing when it is there."""
    return fetch(store.where, lambda: store, cache, limits, (told if told is not None else []).append)


def a_version(tmp_path: Path, name: str, shards: dict[str, int] = SHARDS, **texts: str) -> WatchedStore:
    """A version of the model m, pushed."""
    made = WatchedStore(tmp_path / "store" / "m" / name)
    push(make_model(tmp_path / f"model-{name}", shards, **texts), made.where, made, LIMITS, lambda said: None)
    return made


def break_off(store: WatchedStore, cache: ModelCache) -> None:
    """A fetch that ends before the first shard, which is read last, with all the others there."""
    (store.folder / "model-1.safetensors").rename(store.folder / "later")
    with pytest.raises(NotThere, match=r"model-1\.safetensors: is not in the store, though the manifest has it$"):
        take(store, cache, limits=replace(LIMITS, parallel=1))
    (store.folder / "later").rename(store.folder / "model-1.safetensors")
    store.reads.clear()


def why(cache: ModelCache) -> list[str]:
    """What the notes in quarantine say."""
    return sorted(json.loads(note.read_text())["why"] for note in cache.quarantine.rglob("why.json"))


def versions(cache: ModelCache) -> list[str]:
    folder = cache.root / "versions"
    return sorted(p.name.partition("-")[0] for p in folder.iterdir()) if folder.exists() else []
