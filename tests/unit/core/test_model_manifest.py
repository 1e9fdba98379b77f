"""Manifests come from outside: what they may say, and that everything else is named and refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from serve_app.core.model_manifest import (
    MOST_BYTES,
    MOST_FILES,
    Manifest,
    ManifestError,
    StoredFile,
    manifest_of,
    missing_shards,
    parse_manifest,
)
from serve_app.core.names import digest_of

A = hashlib.sha256(b"a").hexdigest()
EMPTY = hashlib.sha256(b"").hexdigest()


def text(*files: Any, **top: Any) -> bytes:
    return json.dumps({"format": "grix-model/1", "files": list(files), **top}).encode()


def file(path: Any = "config.json", size: Any = 1, sha256: Any = A, **more: Any) -> dict[str, Any]:
    return {"path": path, "bytes": size, "sha256": sha256, **more}


def told(data: bytes) -> str:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(data)
    return str(refused.value)


def test_a_manifest_is_one_text_whatever_the_order() -> None:
    some = [StoredFile("b/c.txt", 0, EMPTY), StoredFile("a.json", 1, A)]
    made = manifest_of(some)
    assert made.text() == manifest_of(some[::-1]).text()
    assert made.text() == (
        '{\n "format": "grix-model/1",\n "files": [\n'
        f'  {{\n   "path": "a.json",\n   "bytes": 1,\n   "sha256": "{A}"\n  }},\n'
        f'  {{\n   "path": "b/c.txt",\n   "bytes": 0,\n   "sha256": "{EMPTY}"\n  }}\n ]\n}}\n'
    )
    assert parse_manifest(made.text().encode()) == made
    assert made.total_bytes == 1


def test_what_decides_answers_is_in_the_digest() -> None:
    names = ["model.safetensors", "tokenizer.json", "chat_template.jinja", "vocab.txt", "sp.model"]
    both = [StoredFile(name, 1, A) for name in names]
    expected = digest_of(dict.fromkeys(names, A))
    assert Manifest(tuple(both)).weights_digest == expected
    others = (StoredFile("README.md", 1, A), StoredFile("sub/config.json", 1, A))
    assert Manifest((*both, *others)).weights_digest == expected
    changed = tuple(StoredFile(f.path, 1, EMPTY if f.path == "chat_template.jinja" else A) for f in both)
    assert Manifest(changed).weights_digest != expected


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "'/etc/passwd' is absolute; allowed: a path below the version"),
        ("../../etc/passwd", "leaves its folder or names none"),
        ("a/../../b", "leaves its folder or names none"),
        ("a/./b", "leaves its folder or names none"),
        ("a//b", "leaves its folder or names none"),
        ("a/", "leaves its folder or names none"),
        ("", "'' leaves its folder or names none"),
        (".", "leaves its folder or names none"),
        ("..\\b", "has a backslash or an invisible character"),
        ("a\x00b", "'a\\x00b' has a backslash or an invisible character"),
        ("a\nb", "has a backslash or an invisible character"),
        ("a\u202eb", "'a\\u202eb' has a backslash or an invisible character"),
        # A code point that is no character cannot be shown either.
        ("a\ud7fc", "'a\\ud7fc' has a backslash or an invisible character"),
        ("a" * 256, "is too long; allowed: 1024 bytes, 255 a name"),
        ("ü" * 128, "is too long"),
        ("/".join(["a" * 200] * 6), "is too long"),
        ("\ud800", "is no text"),
        ("grix-model.json", "is the manifest's own name"),
        ("grix-model.json/a", "is the manifest's own name"),
        (7, "files[0].path: 7; allowed: a relative path"),
    ],
)
def test_a_path_stays_in_its_folder(path: Any, why: str) -> None:
    assert why in told(text(file(path)))


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["a", "a"], "files: 'a' and 'a' are one name"),
        (["Config.json", "config.json"], "files: 'Config.json' and 'config.json' are one name"),
        (["e\u0301", "\u00e9"], "files: 'e\\u0301' and '\\xe9' are one name"),
        (["a", "a/b"], "files: 'a' is a file, and the folder of 'a/b'"),
        (["A", "a/b/c"], "files: 'A' is a file, and the folder of 'a/b/c'"),
    ],
)
def test_two_files_are_never_one(paths: list[str], why: str) -> None:
    assert told(text(*map(file, paths))) == why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no JSON"),
        (b"<html>busy</html>", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 200_000, "is no JSON"),
        (b'{"format": 1e', "is no JSON"),
        (text(file("a", 1))[:-9], "is no JSON"),
        (b'{"files": [{"bytes": ' + b"9" * 5000 + b"}]}", "is no JSON"),
        (b"{}" + b" " * MOST_BYTES, f"is longer than {MOST_BYTES} bytes"),
        (b"[]", "the manifest: []; allowed: an object with format, files"),
        (b"{}", "the manifest: 'files' is missing; allowed: format, files"),
        (text(file(), more=1), "the manifest: 'more' is unknown; allowed: format, files"),
        (b'{"format": "a", "format": "b", "files": []}', "'format' is written twice in one object"),
        (
            json.dumps({"format": "grix-model/2", "files": [file()]}).encode(),
            "format: 'grix-model/2'; allowed: grix-model/1",
        ),
        (text(), f"files: 0; allowed: a list of 1 to {MOST_FILES}"),
        (
            json.dumps({"format": "grix-model/1", "files": {}}).encode(),
            f"files: {{}}; allowed: a list of 1 to {MOST_FILES}",
        ),
        (text(*[1] * (MOST_FILES + 1)), f"files: {MOST_FILES + 1}; allowed: a list of 1 to {MOST_FILES}"),
        (text("a"), "files[0]: 'a'; allowed: an object with path, bytes, sha256"),
        (text({"path": "a"}), "files[0]: 'bytes' is missing; allowed: path, bytes, sha256"),
        (text(file(etag="x")), "files[0]: 'etag' is unknown; allowed: path, bytes, sha256"),
        (text(file(size=-1)), "config.json: bytes: -1; allowed: 0 to 70368744177664"),
        (text(file(size=1 << 60)), f"config.json: bytes: {1 << 60}; allowed: 0 to 70368744177664"),
        (text(file(size=True)), "files[0].bytes: True; allowed: a whole number"),
        (text(file(size=1.0)), "files[0].bytes: 1.0; allowed: a whole number"),
        (text(file(size="1")), "files[0].bytes: '1'; allowed: a whole number"),
        (text(file(sha256=A.upper())), f"config.json: sha256: '{A.upper()}'; allowed: 64 small hexadecimal digits"),
        (text(file(sha256=None)), "files[0].sha256: None; allowed: 64 small hexadecimal digits"),
        (text(file(sha256=A + "\n")), f"config.json: sha256: '{A}\\n'; allowed: 64 small hexadecimal digits"),
        (text(file(size=0)), f"config.json: sha256: '{A}' is not that of an empty file"),
        (
            text(file("a", 1 << 45), file("b", (1 << 45) + 1)),
            "files: 70368744177665 bytes in all; allowed: at most 70368744177664",
        ),
    ],
)
def test_anything_else_is_named(data: bytes, why: str) -> None:
    assert told(data) == why


def test_what_is_shown_of_a_value_is_short_and_on_one_line() -> None:
    assert told(text(file("x" * 5000 + "\n"))) == (
        "files[0].path: '" + "x" * 76 + "… has a backslash or an invisible character"
    )


def test_every_shard_of_an_index_is_asked_for() -> None:
    index = json.dumps(
        {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    ).encode()
    assert missing_shards("i", index, {"m-1.safetensors", "m-2.safetensors"}) == []
    assert missing_shards("i", index, {"m-1.safetensors"}) == ["m-2.safetensors"]
    assert missing_shards("sub/i", index, {"m-1.safetensors", "sub/m-2.safetensors"}) == ["sub/m-1.safetensors"]


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{}", b'{"weight_map": 1}', b'{"weight_map": {"a": []}}', b"[" * 200_000]
)
def test_an_index_that_is_none_is_told(index: bytes) -> None:
    with pytest.raises(ManifestError, match=r"^i: is no weight index; allowed: an object 'weight_map' of file names$"):
        missing_shards("i", index, set())
