"""What is left to fetch of a version, and what a host's cache may forget: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from serve_app.core.model_manifest import Manifest


@dataclass(frozen=True, slots=True)
class Part:
    """A range of the ``file``-th file of a manifest."""

    file: int
    offset: int
    size_bytes: int


class Journal:
    """Which ranges of a version's files are on disk, told by a journal of lines that may end in half a line.

    ``have FILE OFFSET BYTES`` is written after the bytes, ``drop FILE`` when they turned out wrong. A range counts only
    with the bounds that are asked for, so a journal of another size of parts costs bytes and never a wrong file.
    """

    def __init__(self) -> None:
        self._have: dict[int, set[tuple[int, int]]] = defaultdict(set)

    @classmethod
    def read(cls, journal: str) -> Journal:
        made = cls()
        for line in journal.split("\n")[:-1]:
            word, *rest = line.split(" ")
            if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in rest):
                continue
            if word == "have" and len(rest) == 3:
                made._have[int(rest[0])].add((int(rest[1]), int(rest[2])))
            elif word == "drop" and len(rest) == 1:
                made.drop(int(rest[0]))
        return made

    def missing(self, manifest: Manifest, file: int, part_bytes: int) -> list[Part]:
        """The parts of a file that are still to be read, in order; none for an empty file."""
        size, have = manifest.files[file].size_bytes, self._have.get(file, set())
        if (0, size) in have:
            return []
        parts = [Part(file, at, min(part_bytes, size - at)) for at in range(0, size, part_bytes)]
        return [p for p in parts if (p.offset, p.size_bytes) not in have]

    def bytes_of(self, file: int) -> int:
        """How much of a file the ranges that are there amount to."""
        return sum(size for _, size in self._have.get(file, ()))

    def drop(self, file: int) -> None:
        """Forgets what was there of a file."""
        self._have.pop(file, None)

    def begun(self, file: int) -> bool:
        """Whether anything of a file is there."""
        return bool(self._have.get(file))


def have_line(part: Part) -> str:
    return f"have {part.file} {part.offset} {part.size_bytes}\n"


def drop_line(file: int) -> str:
    return f"drop {file}\n"


def fetch_order(manifest: Manifest) -> list[int]:
    """Small files first: an index that does not fit its shards is found before they are read."""
    return sorted(range(len(manifest.files)), key=lambda i: (manifest.files[i].size_bytes, i))


@dataclass(frozen=True, slots=True)
class Kept:
    """A version in a host's cache. ``model`` is the address above the version's: all versions of a model have it."""

    key: str
    model: str
    used_unix_s: float
    in_use: bool = field(default=False)


def to_forget(versions: Iterable[Kept], keep: int) -> list[Kept]:
    """Versions that nobody uses and that are not among the ``keep`` last used ones of their model; oldest first."""
    by_model: dict[str, list[Kept]] = defaultdict(list)
    for version in versions:
        by_model[version.model].append(version)
    left: list[Kept] = []
    for some in by_model.values():
        left += _latest_first(some)[keep:]
    return _latest_first([v for v in left if not v.in_use])[::-1]


def _latest_first(versions: Sequence[Kept]) -> list[Kept]:
    return sorted(versions, key=lambda v: (-v.used_unix_s, v.key))


def shown(size_bytes: float) -> str:
    """A size for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes everything")
