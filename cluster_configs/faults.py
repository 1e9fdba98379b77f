"""What is wrong with documents: every fault has a place and says what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_PLAIN_KEY: Final = re.compile(r"[\w<-]{1,60}")
#: Keys and list positions from a document's root to a value.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing wrong. ``line`` counts from 1; ``path`` is dotted, or ``(file)`` or ``(document)`` for all of it."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.message}"


class ConfigError(ValueError):
    """The documents are refused as a whole. ``faults`` has all that was found, by file and line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(set(faults)))
        super().__init__("\n".join(str(f) for f in self.faults))


@dataclass(frozen=True, slots=True)
class Problem:
    """A contradiction between values that are each allowed.

    ``path`` is where it is shown; ``reads`` are the paths it was found from: when one of them holds a fault of
    its own, the contradiction is only its echo.
    """

    path: Path
    message: str
    reads: tuple[Path, ...] = ()


def dotted(path: Sequence[str | int]) -> str:
    """``spec.rules[2].match.lang``; ``(document)`` for the empty path. Keys that are no plain word are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part if _PLAIN_KEY.fullmatch(part) else shown(part)}"
    return text.removeprefix(".") or "(document)"


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'X'?)`` for the most similar known word, or nothing when none is near."""
    known = list(known)
    lowered = {k.lower(): k for k in reversed(known)}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f" (did you mean '{lowered[near[0]]}'?)" if near else ""


def shown(value: object) -> str:
    """A value as a message shows it, cut to a readable length."""
    text = value if isinstance(value, str) else str(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f"'{text if len(text) <= 60 else text[:57] + '...'}'"


def listed(words: Iterable[str]) -> str:
    """Words for ``allowed: …``, cut when there are very many."""
    words = list(words)
    return ", ".join(words) if len(words) <= 40 else ", ".join(words[:40]) + ", …"
