"""What an engine is given to load: the version in its digest, whole, and kept while it lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_configs.kind_agent import AgentSpec
from serve_app.edge.engine_model import engine_model
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_files import model_bytes, model_digest
from serve_app.edge.model_gc import sweep
from serve_app.edge.serve_config import engine_args
from serve_app.edge.store_types import StoreError
from tests.model_stores import (
    SHARDS,
    WatchedStore,
    a_version,
)

TOTAL = sum(SHARDS.values())


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return a_version(tmp_path, "v1")


def engine(store: WatchedStore, **changes: object) -> dict[str, object]:
    storage = {"modelPath": store.address}
    spec = AgentSpec.model_validate({"version": "1", "duty": "chat", "model": "m", "storage": storage, **changes})
    return engine_args("a", spec, store.address)


def test_an_engine_loads_the_copy_of_its_host(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    cache = ModelCache()
    assert cache.root == tmp_path / "c" / "models"
    folder, lease = engine_model(engine(store))
    assert folder == str(cache.version(store.where.key) / "files") and lease is not None
    swept = [(s.what, s.removed) for s in sweep(cache, keep=0, older_s=0.0, now_unix_s=0.0, dry_run=False)]
    assert swept == [("version, in use", False)]
    lease.free()
    assert engine_model({"model_path": "embedded:tiny-qwen"})[1] is None


def test_mod_07_a_digest_is_of_what_the_version_holds(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    other = a_version(tmp_path, "v2", tokenizer_json="[1]")
    same = a_version(tmp_path, "v3")
    digests = [engine(s)["engine_digest"] for s in (store, other, same)]
    assert digests[0] == digests[2] != digests[1]
    # The same as of the folder that was pushed: moving a model does not change the engine.
    assert model_digest(store.address) == model_digest(f"file://{tmp_path / 'model-v1'}")
    assert model_bytes(store.address) == model_bytes(f"file://{tmp_path / 'model-v1'}") == TOTAL


def test_mod_07_a_version_that_was_changed_is_not_loaded(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    args = engine(store)
    store.rewrite_manifest(tokenizer_json=b"[1]")
    with pytest.raises(
        StoreError, match=r"m/v1: this host has it as engine \w{12}, the config asks for \w{12}: the version"
    ):
        engine_model(args)
    assert engine_model(engine(store))[1] is not None


def test_mod_08_tokenizer_and_template_come_with_the_weights(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    pinned = a_version(tmp_path, "v2", chat_template_jinja="pinned", tokenizer_json='"pinned"')
    main = a_version(tmp_path, "main", chat_template_jinja="main", tokenizer_json='"main"')
    assert engine(pinned)["engine_digest"] != engine(main)["engine_digest"]
    for version, said in ((main, "main"), (pinned, "pinned")):
        folder = Path(engine_model(engine(version))[0])
        assert (folder / "chat_template.jinja").read_text() == said
        assert (folder / "tokenizer.json").read_text() == f'"{said}"'
