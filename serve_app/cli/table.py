"""Tables for a terminal, where a Chinese character takes two cells and a combining mark none."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

_NO_WIDTH: Final = ("Mn", "Me", "Cf", "Cc")
_VOWELS: Final = range(0x1160, 0x1200)  # Hangul vowels and finals join the consonant before them


def width(text: str) -> int:
    """Cells that ``text`` takes."""
    cells = 0
    for char in text:
        if unicodedata.category(char) in _NO_WIDTH or ord(char) in _VOWELS:
            continue
        cells += 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
    return cells


def cut(text: str, cells: int) -> str:
    """``text`` on one line in at most ``cells`` cells, with an ellipsis where something is left out."""
    text = " ".join(text.split())
    if width(text) <= cells:
        return text
    kept, used = "", 0
    for char in text:
        used += width(char)
        if used > cells - 1:
            break
        kept += char
    return kept + "…"


def pad(text: str, cells: int) -> str:
    """``text`` filled with spaces to ``cells`` cells."""
    return text + " " * max(0, cells - width(text))


def render(head: Sequence[str], rows: Sequence[Sequence[object]], right: frozenset[str] = frozenset()) -> str:
    """A table with a rule under its head; ``None`` is shown as a dash; columns in ``right`` are aligned right."""
    cells = [["–" if value is None else str(value) for value in row] for row in rows]
    widths = [max([width(name), *(width(row[i]) for row in cells)]) for i, name in enumerate(head)]

    def line(row: Sequence[str]) -> str:
        parts = []
        for name, text, size in zip(head, row, widths, strict=True):
            parts.append(" " * (size - width(text)) + text if name in right else pad(text, size))
        return "  ".join(parts).rstrip()

    return "\n".join([line(head), "  ".join("-" * size for size in widths), *(line(row) for row in cells)])
