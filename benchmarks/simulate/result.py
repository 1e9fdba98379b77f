"""What a scenario found: figures for people, and promises that were kept or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure with its bound."""

    what: str
    measured: float | None
    bound: Literal["at most", "at least"]
    allowed: float

    @property
    def is_kept(self) -> bool:
        """Without a measurement nothing is kept."""
        if self.measured is None:
            return False
        return self.measured <= self.allowed if self.bound == "at most" else self.measured >= self.allowed


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario. ``figures`` are rows of a table: a variant, and its figures by name."""

    scenario: str
    regions: int
    requests: int
    virtual_s: float
    figures: Mapping[str, Mapping[str, float | int | None]]
    promises: Sequence[Promise]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def is_kept(self) -> bool:
        return all(p.is_kept for p in self.promises)

    def as_json(self) -> dict[str, Any]:
        promises = [{**asdict(p), "kept": p.is_kept} for p in self.promises]
        return {**asdict(self), "promises": promises, "kept": self.is_kept}


def shown(value: float | int | None) -> str:
    """A figure for people; ``None`` was not measured."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(result: Result) -> str:
    """The figures with their heads, the notes, and each promise."""
    heads = list(next(iter(result.figures.values())))
    rows = [["", *heads], *([name, *(shown(row[h]) for h in heads)] for name, row in result.figures.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads) + 1)]
    title = f"{result.scenario}: {result.regions} regions, {result.requests:,} requests, {result.virtual_s:,.0f} s"
    lines = [title]
    for row in rows:
        first, *others = row
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    lines += [f"note: {note}" for note in result.notes]
    for p in result.promises:
        word = "kept  " if p.is_kept else "BROKEN"
        lines.append(f"{word} {p.what}: {shown(p.measured)} ({p.bound} {shown(p.allowed)})")
    return "\n".join(lines)
