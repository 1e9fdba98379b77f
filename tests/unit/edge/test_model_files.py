"""Names of models to files of models, and a digest of what decides answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from serve_app.core.names import digest_of
from serve_app.edge.model_files import (
    ModelError,
    as_model_path,
    file_sha256,
    hub_revision,
    local_model,
    model_bytes,
    model_digest,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder of three files."""
    made = tmp_path / "m"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "README.md").write_text("not part of the model")
    return made


@pytest.mark.parametrize(
    ("model_path", "model"),
    [
        ("hf:Qwen/Qwen2.5-7B@abc", "Qwen/Qwen2.5-7B"),
        ("hf:Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
    ],
)
def test_what_an_engine_fetches_itself_stays_a_uri(model_path: str, model: str) -> None:
    assert local_model(model_path) == model
    assert model_digest(model_path) == digest_of({"uri": model_path})
    assert model_bytes(model_path) is None


@pytest.mark.parametrize(
    ("model_path", "revision"),
    [("hf:a/b@v1", "v1"), ("hf:a/b", None), ("hf:a/b@", None), ("s3://a/b@v1", None), ("file:///a@b", None)],
)
def test_only_a_hub_model_has_a_revision(model_path: str, revision: str | None) -> None:
    assert hub_revision(model_path) == revision


def test_a_folder_is_found_by_its_uri(folder: Path) -> None:
    assert local_model(f"file://{folder}") == str(folder)
    assert model_bytes(f"file://{folder}") == 7


def test_a_digest_is_of_names_and_contents_that_matter(folder: Path) -> None:
    uri = f"file://{folder}"
    first = model_digest(uri)
    assert first == digest_of(
        {
            "config.json": hashlib.sha256(b"{}").hexdigest(),
            "model.safetensors": hashlib.sha256(b"weights").hexdigest(),
        }
    )
    (folder / "README.md").write_text("changed")
    assert model_digest(uri) == first
    (folder / "chat_template.jinja").write_text("x")
    assert model_digest(uri) != first


def test_moving_a_model_keeps_its_digest(folder: Path, tmp_path: Path) -> None:
    before = model_digest(f"file://{folder}")
    moved = folder.rename(tmp_path / "elsewhere")
    assert model_digest(f"file://{moved}") == before


def test_a_large_file_is_digested_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * (3 * 4096 + 1)
    (tmp_path / "f").write_bytes(data)
    assert file_sha256(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_missing_parts_are_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"weights are missing: model-1\.safetensors, model-2\.safetensors$"):
        local_model(f"file://{folder}")
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"is not a model folder: config\.json is missing"):
        local_model(f"file://{folder}")


@pytest.mark.parametrize("model_path", ["tiny-qwen", "http://a/b", "gs://a/b", "", "/folder", "ftp:x"])
def test_what_is_no_model_path_is_told_what_is(model_path: str) -> None:
    with pytest.raises(ModelError, match="names no model; allowed: tiny-qwen, smollm2, a folder"):
        local_model(model_path)


def test_an_unknown_embedded_model_is_told_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"^embedded:big is not a model of this project; allowed: embedded:tiny-qwen$"):
        local_model("embedded:big")


@pytest.mark.parametrize(
    ("said", "model_path"),
    [
        ("tiny-qwen", "embedded:tiny-qwen"),
        ("smollm2", "smollm2"),
        ("embedded:tiny-qwen", "embedded:tiny-qwen"),
        ("s3://b/m", "s3://b/m"),
        ("Qwen/Qwen2.5-7B", "hf:Qwen/Qwen2.5-7B@main"),
        ("Qwen/Qwen2.5-7B@v1", "hf:Qwen/Qwen2.5-7B@v1"),
        ("hf:a/b@v1", "hf:a/b@v1"),
    ],
)
def test_what_a_person_writes_becomes_a_model_path(said: str, model_path: str) -> None:
    assert as_model_path(said) == model_path


@pytest.mark.parametrize("said", ["", " ", "\t\n"])
def test_an_empty_model_is_not_the_folder_one_is_in(said: str) -> None:
    with pytest.raises(ModelError, match=r"^--model is empty; allowed: tiny-qwen"):
        as_model_path(said)


def test_a_folder_that_is_there_wins_over_a_hub_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert as_model_path(f"{folder.parent.name}/m") == f"file://{folder.resolve()}"


@pytest.mark.parametrize("said", ["big-model", "./nowhere", "../a/b", "/no/such", "a/b/c", "a b/c"])
def test_anything_else_is_refused(said: str) -> None:
    with pytest.raises(ModelError, match="is no folder, name or hub id; allowed: tiny-qwen"):
        as_model_path(said)
