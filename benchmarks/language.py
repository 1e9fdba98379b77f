"""How often the language of a text is guessed right: ``python -m benchmarks.language [--data DIR] [--json]``.

Reads every ``*.tsv`` and ``*.tsv.gz`` of a directory: a header line, then columns ``lang``, ``kind``, ``text`` (others
are ignored). Without ``--data`` it reads ``language_lines.tsv`` beside this file. Each text is judged whole and cut to
its first 40, 20 and 10 characters, without a session. ``accuracy`` is of the best guess before the confidence floor;
``coverage`` is the share of texts above the floor, and ``precision`` the share of those that are right. The two Chinese
scripts count as one language, and so do Indonesian and Malay. Rows in languages that the route table does not have are
skipped. The time of a text is the fastest of three calls, so that other work of the machine is not counted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serve_app.core.language import LANGUAGES, Predict, decide
from serve_app.edge.language_id import LanguageId, LanguageModelError

OWN_LINES: Final = Path(__file__).with_name("language_lines.tsv")
CUTS: Final[Mapping[str, int | None]] = {"full": None, "40": 40, "20": 20, "10": 10}
FIGURES: Final = ("accuracy", "coverage", "precision")
COLUMNS: Final = ("lang", "kind", "text")
#: Codes that count as another one.
SAME: Final[Mapping[str, str]] = {"zh-Hans": "zh", "zh-Hant": "zh", "ms": "id"}
CALLS_PER_TEXT: Final = 3


class DataError(Exception):
    """The data cannot be read; the message says which file or line, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One text and its language, as its file has them."""

    lang: str
    kind: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts of one kind at one cut."""

    texts: int = 0
    right: int = 0
    covered: int = 0
    covered_right: int = 0

    def add(self, other: Tally) -> None:
        self.texts += other.texts
        self.right += other.right
        self.covered += other.covered
        self.covered_right += other.covered_right

    def figures(self) -> dict[str, float | None]:
        """Accuracy, coverage and precision in [0, 1]; None where nothing was counted."""
        return {
            "accuracy": self.right / self.texts if self.texts else None,
            "coverage": self.covered / self.texts if self.texts else None,
            "precision": self.covered_right / self.covered if self.covered else None,
        }


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """The rows of tab-separated files. Raises DataError naming file and line."""
    for path in paths:
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
        except Exception as error:  # zlib.error has no public base
            raise DataError(f"{path}: cannot be decompressed: {error}") from error
        # Only "\n" ends a line: texts may hold U+2028 or a form feed, which splitlines() would cut at.
        header, *lines = text.split("\n")
        names = header.rstrip("\r").split("\t")
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise DataError(
                f"{path}:1: no column {', '.join(missing)}; the header names lang, kind and text, tab-separated"
            )
        places = [names.index(name) for name in COLUMNS]
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            fields = line.rstrip("\r").split("\t")
            if len(fields) <= max(places):
                raise DataError(f"{path}:{number}: {len(fields)} fields, the header has {len(names)}")
            yield Row(*(fields[place] for place in places))


def data_paths(directory: Path | None) -> list[Path]:
    """The files to read, by name. Raises DataError when there are none."""
    if directory is None:
        return [OWN_LINES]
    if not directory.is_dir():
        raise DataError(f"--data {directory}: is not a directory")
    paths = sorted([*directory.glob("*.tsv"), *directory.glob("*.tsv.gz")])
    if not paths:
        raise DataError(f"--data {directory}: has no *.tsv or *.tsv.gz file")
    return paths


def _fold(code: str) -> str:
    return SAME.get(code, code)


def measure(rows: Iterable[Row], predict: Predict) -> dict[str, Any]:
    """The report as JSON values: figures by cut, the same by kind, ``p99_ms``, and how many rows counted."""
    served = {_fold(code) for code in LANGUAGES}
    tallies: dict[str, dict[str, Tally]] = defaultdict(lambda: {cut: Tally() for cut in CUTS})
    times_ms: list[float] = []
    counted = skipped = 0
    decide("warm up", predict, None)
    for row in rows:
        lang = _fold(row.lang)
        if lang not in served:
            skipped += 1
            continue
        counted += 1
        times_ms.append(_fastest_ms(row.text, predict))
        for cut, length in CUTS.items():
            guess = decide(row.text[:length], predict, None)
            covered = guess.language != "und"
            right = covered and _fold(guess.language) == lang
            tallies[row.kind][cut].add(Tally(1, int(_fold(guess.top) == lang), int(covered), int(right)))

    total = {cut: Tally() for cut in CUTS}
    for tally in tallies.values():
        for cut in CUTS:
            total[cut].add(tally[cut])
    by_kind = {kind: {**_by_figure(tally), "rows": tally["full"].texts} for kind, tally in sorted(tallies.items())}
    return {**_by_figure(total), "by_kind": by_kind, "p99_ms": _p99(times_ms), "rows": counted, "skipped": skipped}


def _fastest_ms(text: str, predict: Predict) -> float:
    fastest = float("inf")
    for _ in range(CALLS_PER_TEXT):
        start = time.perf_counter()
        decide(text, predict, None)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest * 1000.0


def _p99(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def _by_figure(tally: Mapping[str, Tally]) -> dict[str, dict[str, float | None]]:
    figures = {cut: tally[cut].figures() for cut in CUTS}
    return {name: {cut: figures[cut][name] for cut in CUTS} for name in FIGURES}


def table(report: Mapping[str, Any]) -> str:
    """The report for people: one block of three figures by four cuts for all rows, and one for each kind."""
    lines = [f"{'kind':<16} {'rows':>6}  {'figure':<10}" + "".join(f"{cut:>8}" for cut in CUTS)]
    for kind, block in [("all", {**report, "rows": report["rows"]}), *report["by_kind"].items()]:
        for name in FIGURES:
            first = f"{kind:<16} {block['rows']:>6}" if name == FIGURES[0] else " " * 23
            cells = "".join(
                f"{'-' if block[name][cut] is None else format(block[name][cut], '.4f'):>8}" for cut in CUTS
            )
            lines.append(f"{first}  {name:<10}{cells}")
    p99 = "no data" if report["p99_ms"] is None else f"{report['p99_ms']:.3f} ms"
    lines.append(f"\n{report['rows']} rows, {report['skipped']} skipped (language not in the route table), p99 {p99}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 when the data or the model cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description="Accuracy of language guesses.")
    parser.add_argument("--data", type=Path, metavar="DIR", help="directory of *.tsv and *.tsv.gz: lang, kind, text")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = measure(read_rows(data_paths(options.data)), LanguageId().predict)
    except (DataError, LanguageModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, ensure_ascii=False, indent=2) if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
