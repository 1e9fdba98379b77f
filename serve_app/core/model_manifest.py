"""The manifest of a version in a model store: every file with its size and SHA-256, written after all of them.

It comes from outside, so nothing in it is believed before it is checked: a path that leaves the folder, two names for
one file, sizes and counts without end.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.names import digest_of

#: Its name in a version; no file of a version may have it.
MANIFEST: Final = "grix-model.json"
FORMAT: Final = "grix-model/1"
MOST_BYTES: Final = 16 << 20
MOST_FILES: Final = 10_000
#: Of one version. The largest models there are have 2 TB.
MOST_TOTAL_BYTES: Final = 64 << 40
#: What file systems take: bytes of a path, and of one name in it.
_PATH_BYTES: Final = 1024
_NAME_BYTES: Final = 255

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_INDEX: Final = ".safetensors.index.json"
#: What decides answers, by the ending of its name: weights, tokenizer, chat template, generation defaults.
DECISIVE: Final = (".safetensors", ".json", ".jinja", ".txt", ".model")


class ManifestError(ValueError):
    """What is wrong with a manifest: the field, its value, and what is allowed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a version. ``path`` is relative, its parts separated by ``/``."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a version, ordered by path."""

    files: tuple[StoredFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files)

    @property
    def weights_digest(self) -> str:
        """What :func:`serve_app.edge.model_files.model_digest` gives for a folder with these files."""
        top = (f for f in self.files if "/" not in f.path)
        return digest_of({f.path: f.sha256 for f in top if f.path.endswith(DECISIVE)})

    def text(self) -> str:
        """The one text of these files: the same files give the same bytes."""
        files = [{"path": f.path, "bytes": f.size_bytes, "sha256": f.sha256} for f in self.files]
        return json.dumps({"format": FORMAT, "files": files}, indent=1, ensure_ascii=False) + "\n"


def manifest_of(files: Iterable[StoredFile]) -> Manifest:
    """A checked manifest.

    Raises:
        ManifestError: naming the first file that cannot be in one.
    """
    ordered = tuple(sorted(files, key=lambda f: f.path))
    if not 1 <= len(ordered) <= MOST_FILES:
        raise ManifestError(f"files: {len(ordered)} of them; allowed: 1 to {MOST_FILES}")
    for i, file in enumerate(ordered):
        fault = _path_fault(file.path)
        if fault:
            raise ManifestError(f"files[{i}].path: {_shown(file.path)} {fault}")
        if not 0 <= file.size_bytes <= MOST_TOTAL_BYTES:
            raise ManifestError(f"{file.path}: bytes: {_shown(file.size_bytes)}; allowed: 0 to {MOST_TOTAL_BYTES}")
        if _SHA256.fullmatch(file.sha256) is None:
            raise ManifestError(f"{file.path}: sha256: {_shown(file.sha256)}; allowed: 64 small hexadecimal digits")
        if file.size_bytes == 0 and file.sha256 != _EMPTY:
            raise ManifestError(f"{file.path}: sha256: {_shown(file.sha256)} is not that of an empty file")
    _check_together(ordered)
    made = Manifest(ordered)
    if made.total_bytes > MOST_TOTAL_BYTES:
        raise ManifestError(f"files: {made.total_bytes} bytes in all; allowed: at most {MOST_TOTAL_BYTES}")
    return made


def parse_manifest(data: bytes) -> Manifest:
    """A manifest as it lies in a store.

    Raises:
        ManifestError: naming field, value and what is allowed.
    """
    if len(data) > MOST_BYTES:
        raise ManifestError(f"is longer than {MOST_BYTES} bytes")
    try:
        raw = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except ManifestError:
        raise
    except (ValueError, RecursionError):
        raise ManifestError("is no JSON") from None
    fields = _fields(raw, "the manifest", ("format", "files"))
    if fields["format"] != FORMAT:
        raise ManifestError(f"format: {_shown(fields['format'])}; allowed: {FORMAT}")
    files = fields["files"]
    if not isinstance(files, list) or not 1 <= len(files) <= MOST_FILES:
        count = len(files) if isinstance(files, list) else _shown(files)
        raise ManifestError(f"files: {count}; allowed: a list of 1 to {MOST_FILES}")
    return manifest_of(_file(entry, i) for i, entry in enumerate(files))


def missing_shards(index_path: str, index_text: bytes, paths: Collection[str]) -> list[str]:
    """Files that a weight index names and a version does not have, as paths of the version.

    Raises:
        ManifestError: when it is no weight index.
    """
    try:
        shards = set(json.loads(index_text)["weight_map"].values())
        folder = index_path.rpartition("/")[0]
        named = {f"{folder}/{shard}" if folder else str(shard) for shard in shards}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ManifestError(
            f"{index_path}: is no weight index; allowed: an object 'weight_map' of file names"
        ) from None
    return sorted(named - set(paths))


def is_weight_index(path: str) -> bool:
    """Whether a file lists the shards of a model."""
    return path.endswith(_INDEX)


def _file(entry: Any, i: int) -> StoredFile:
    fields = _fields(entry, f"files[{i}]", ("path", "bytes", "sha256"))
    path, size, sha256 = fields["path"], fields["bytes"], fields["sha256"]
    if not isinstance(path, str):
        raise ManifestError(f"files[{i}].path: {_shown(path)}; allowed: a relative path")
    if type(size) is not int:
        raise ManifestError(f"files[{i}].bytes: {_shown(size)}; allowed: a whole number")
    if not isinstance(sha256, str):
        raise ManifestError(f"files[{i}].sha256: {_shown(sha256)}; allowed: 64 small hexadecimal digits")
    return StoredFile(path, size, sha256)


def _path_fault(path: str) -> str:
    """Why a path cannot be that of a file of a version, empty when it can."""
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        return "is no text"
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute; allowed: a path below the version"
    if any(part in ("", ".", "..") for part in parts):
        return "leaves its folder or names none; allowed: names separated by single /"
    if "\\" in path or not path.isprintable():
        return "has a backslash or an invisible character"
    if len(raw) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in parts):
        return f"is too long; allowed: {_PATH_BYTES} bytes, {_NAME_BYTES} a name"
    if parts[0] == MANIFEST:
        return "is the manifest's own name"
    return ""


def _check_together(files: tuple[StoredFile, ...]) -> None:
    """No two of them are one file, also where case or composition of letters does not count; none is a folder too."""
    seen: dict[str, str] = {}
    for file in files:
        key = _folded(file.path)
        if key in seen:
            raise ManifestError(f"files: {_shown(seen[key])} and {_shown(file.path)} are one name")
        seen[key] = file.path
    for key, path in seen.items():
        parts = key.split("/")
        for n in range(1, len(parts)):
            above = "/".join(parts[:n])
            if above in seen:
                raise ManifestError(f"files: {_shown(seen[above])} is a file, and the folder of {_shown(path)}")


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _fields(raw: Any, where: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ManifestError(f"{where}: {_shown(raw)}; allowed: an object with {', '.join(names)}")
    wrong = sorted(raw.keys() ^ set(names))
    if wrong:
        said = "is missing" if wrong[0] in names else "is unknown"
        raise ManifestError(f"{where}: {_shown(wrong[0])} {said}; allowed: {', '.join(names)}")
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ManifestError(f"{_shown(key)} is written twice in one object")
        made[key] = value
    return made


def _shown(value: object) -> str:
    """A value for a message: short, printable, on one line."""
    return ascii(value) if len(ascii(value)) <= 80 else f"{ascii(value)[:77]}…"
