"""Versions pushed into a folder, and what a push refuses."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.core.model_manifest import MANIFEST, parse_manifest
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_store import address_of, manifest_at, open_store, push, stored
from serve_app.edge.model_verify import faults_in_cache, faults_in_store
from serve_app.edge.store_types import Limits, StoreError
from tests.model_stores import LIMITS, WatchedStore, content_of, make_model, take


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return WatchedStore(tmp_path / "store" / "m" / "v1")


def pushed(model: Path, store: WatchedStore, limits: Limits = LIMITS) -> int:
    return push(model, store.where, store, limits, lambda said: None).sent_bytes


def test_a_version_is_its_files_and_a_manifest(model: Path, store: WatchedStore) -> None:
    total = sum(map(len, content_of(model).values()))
    assert pushed(model, store) == total
    held = content_of(store.folder)
    manifest = parse_manifest(held.pop(MANIFEST))
    assert held == content_of(model)
    assert [(f.path, f.size_bytes) for f in manifest.files] == [(p, len(d)) for p, d in sorted(held.items())]


def test_the_same_again_sends_nothing(model: Path, store: WatchedStore) -> None:
    pushed(model, store)
    before = {p: p.stat() for p in store.folder.rglob("*")}
    assert pushed(model, store) == 0
    assert {p: p.stat() for p in store.folder.rglob("*")} == before


def test_a_push_that_was_killed_goes_on(model: Path, store: WatchedStore) -> None:
    pushed(model, store)
    (store.folder / MANIFEST).unlink()
    (store.folder / "model-2.safetensors").write_bytes(b"half")
    assert pushed(model, store) == 2000
    assert content_of(store.folder).keys() == content_of(model).keys() | {MANIFEST}


def test_a_version_never_changes(model: Path, store: WatchedStore) -> None:
    pushed(model, store)
    before = content_of(store.folder)
    (model / "config.json").write_text("[]")
    with pytest.raises(StoreError, match=r"m/v1: holds another version, and a version never changes; push to another"):
        pushed(model, store)
    assert content_of(store.folder) == before


def test_the_manifest_comes_last(model: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    once = store.write_once
    monkeypatch.setattr(store, "write_once", lambda n, d: (seen.append(set(content_of(store.folder))), once(n, d))[1])
    pushed(model, store)
    assert seen == [set(content_of(model))]


def test_of_two_pushes_one_writes_the_manifest(
    model: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = store.write_once

    def late(name: str, data: bytes) -> bool:
        once(name, data.replace(b" ", b""))
        return once(name, data)

    monkeypatch.setattr(store, "write_once", late)
    with pytest.raises(StoreError, match="holds another version"):
        pushed(model, store)


def test_another_push_to_the_same_address_is_seen(
    model: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write

    def overwritten(name: str, *rest: object) -> None:
        write(name, *rest)  # type: ignore[arg-type]
        if name == "config.json":
            (store.folder / name).write_text("[]")

    monkeypatch.setattr(store, "write", overwritten)
    with pytest.raises(StoreError, match=r"config\.json: the store does not hold what was sent; does another push run"):
        pushed(model, store)
    assert not (store.folder / MANIFEST).exists()


def test_a_file_that_changes_under_a_push_ends_it(
    model: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = store.look
    monkeypatch.setattr(store, "look", lambda n: ((model / "config.json").write_text("[1]"), look(n))[1])
    with pytest.raises(StoreError, match=r"config\.json: changes while it is pushed$"):
        pushed(model, store)
    assert MANIFEST not in content_of(store.folder)


def test_what_cannot_be_a_version_is_told(tmp_path: Path, model: Path, store: WatchedStore) -> None:
    def told(folder: Path) -> str:
        with pytest.raises(StoreError) as refused:
            pushed(folder, store)
        return str(refused.value)

    assert told(tmp_path / "none") == f"{tmp_path}/none: is no folder"
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    (tmp_path / "empty" / ".git" / "config").write_text("hidden")
    assert told(tmp_path / "empty") == f"{tmp_path}/empty: holds no file"
    (model / "model-2.safetensors").unlink()
    assert told(model) == f"{model}: weights that model.safetensors.index.json names are missing: model-2.safetensors"
    (model / "model.safetensors.index.json").write_text("{}")
    assert told(model).startswith(f"{model}: model.safetensors.index.json: is no weight index; allowed:")
    (model / "model.safetensors.index.json").unlink()
    (model / MANIFEST).write_text("{}")
    assert told(model).endswith("'grix-model.json' is the manifest's own name")
    (model / MANIFEST).unlink()
    (model / "link").symlink_to("/etc/passwd")
    assert told(model) == f"{model}/link: is a symbolic link; allowed: files and folders, as cp -rL copies them"
    (model / "link").unlink()
    os.mkfifo(model / "pipe")
    assert told(model) == f"{model}/pipe: is no regular file"
    assert not store.folder.exists()


def test_a_store_that_cannot_be_written_is_told(
    model: Path, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    # One thread, so that no other still has a draft there.
    with pytest.raises(StoreError, match=r"m/v1: cannot be written: No space left on device$"):
        pushed(model, store, replace(LIMITS, parallel=1))
    assert content_of(store.folder) == {}


def test_a_path_is_a_version_only_with_a_manifest(tmp_path: Path, model: Path, store: WatchedStore) -> None:
    assert stored(f"file://{model}") is None
    assert stored("embedded:tiny-qwen") is stored("hf:a/b@c") is stored("smollm2") is None
    pushed(model, store)
    assert stored(store.address) == store.where
    assert stored("s3://models/qwen/v1/") == address_of("s3://models/qwen/v1")
    with pytest.raises(StoreError, match=r"'s3://models/\.\./v1' is no address of a version"):
        stored("s3://models/../v1")
    cache = ModelCache(tmp_path / "cache")
    assert (
        manifest_at(store.where, cache, LIMITS).weights_digest == manifest_at(store.where, cache, LIMITS).weights_digest
    )
    with pytest.raises(StoreError, match=r"holds no version: grix-model\.json, which is written last, is not there"):
        manifest_at(address_of(f"file://{model}"), cache, LIMITS)


def test_a_look_at_a_store_names_what_is_wrong(tmp_path: Path, model: Path, store: WatchedStore) -> None:
    cache, said = ModelCache(tmp_path / "cache"), list[str]()

    def faults(read: bool) -> list[str]:
        return faults_in_store(store.where, cache, open_store(store.where, LIMITS), LIMITS, said.append, read=read)

    assert faults(False) == [
        f"{store.address}: holds no version: grix-model.json, which is written last, is not there; "
        "push it with: grix model push FOLDER ADDRESS"
    ]
    pushed(model, store)
    assert faults(False) == faults(True) == []
    assert sorted(said) == sorted(f"{name}: read and right" for name in content_of(model))
    (store.folder / "config.json").unlink()
    (store.folder / "tokenizer.json").write_text("[]")
    (store.folder / "model-1.safetensors").write_bytes(b"short")
    (store.folder / "model-2.safetensors").unlink()
    (store.folder / "model-2.safetensors").symlink_to(model / "model-2.safetensors")
    manifest = {f.path: f.sha256 for f in parse_manifest((store.folder / MANIFEST).read_bytes()).files}
    changed = hashlib.sha256(b"[]").hexdigest()
    assert faults(True) == [
        f"{store.address}/config.json: is not in the store",
        f"{store.address}/model-1.safetensors: has 5 bytes; the manifest says 3500",
        f"{store.address}/model-2.safetensors: is behind a symbolic link, or no folder is on the way",
        f"{store.address}/tokenizer.json: SHA-256 {changed}; the manifest says {manifest['tokenizer.json']}",
    ]
    assert faults(False)[1] == f"{store.address}/model-1.safetensors: 5 bytes; the manifest says 3500"


def test_a_copy_in_the_cache_is_read_again(tmp_path: Path, model: Path, store: WatchedStore) -> None:
    cache = ModelCache(tmp_path / "cache")
    pushed(model, store)
    assert faults_in_cache(store.where, cache, LIMITS, lambda said: None) is None
    folder = take(store, cache).folder
    assert faults_in_cache(store.where, cache, LIMITS, lambda said: None) == []
    # A bit that turned on the disk: size and time are as they were.
    shard = folder / "model-1.safetensors"
    left = shard.stat()
    shard.write_bytes(b"\0" + shard.read_bytes()[1:])
    os.utime(shard, ns=(left.st_atime_ns, left.st_mtime_ns))
    assert take(store, cache).read_bytes == 0
    assert faults_in_cache(store.where, cache, LIMITS, lambda said: None) == [
        f"{shard}: is not what the manifest says; it is in {cache.quarantine} now"
    ]
    assert faults_in_cache(store.where, cache, LIMITS, lambda said: None) is None
    assert take(store, cache).read_bytes == 3500
    assert faults_in_cache(store.where, cache, LIMITS, lambda said: None) == []
