"""The benchmark's arithmetic, its input rules, and its own lines with the real model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.language import CUTS, DataError, Row, data_paths, main, measure, read_rows, table


def fake_predict(text: str) -> list[tuple[str, float]]:
    """English for everything, but nothing known about 'zq'."""
    return [("en", 0.1245), ("ca", 0.0859)] if "zq" in text else [("en", 0.99)]


ROWS = [
    Row("en", "chat", "where is my order"),
    Row("es", "chat", "where is my order"),
    Row("en", "odd", "zqzqx zq"),
    Row("zh-Hans", "script", "总结成三点"),
    Row("zh-Hant", "script", "總結成三點"),
    Row("fr", "chat", "bonjour"),
    Row("und", "noise", "👍"),
]


def test_figures_are_exact() -> None:
    report = measure(ROWS, fake_predict)
    assert (report["rows"], report["skipped"]) == (5, 2)
    assert set(report) == {"accuracy", "coverage", "precision", "by_kind", "p99_ms", "rows", "skipped"}
    assert set(report["by_kind"]) == {"chat", "odd", "script"}
    chat = report["by_kind"]["chat"]
    assert (chat["accuracy"]["full"], chat["coverage"]["full"], chat["precision"]["full"], chat["rows"]) == (
        0.5,
        1.0,
        0.5,
        2,
    )
    assert report["by_kind"]["script"]["accuracy"] == dict.fromkeys(CUTS, 1.0)
    odd = report["by_kind"]["odd"]
    assert (odd["coverage"]["full"], odd["precision"]["full"]) == (0.0, None)
    assert report["coverage"]["full"] == 0.8
    assert report["precision"]["full"] == 0.75
    assert report["p99_ms"] > 0.0


def test_indonesian_and_malay_count_as_one() -> None:
    rows = [Row("ms", "k", "tolong batalkan tempahan saya"), Row("id", "k", "tolong batalkan pesanan ini")]
    report = measure(rows, lambda _: [("ms", 0.6), ("id", 0.3)])
    assert report["accuracy"]["full"] == 1.0
    assert report["precision"]["full"] == 1.0


def test_cuts_judge_the_first_characters() -> None:
    row = Row("ko", "k", "x" * 10 + "y" * 10 + " 고마워요" * 10)
    report = measure([row], lambda _: [])
    assert report["accuracy"]["full"] == 1.0
    assert report["accuracy"]["20"] == 0.0
    assert report["accuracy"]["10"] == 0.0


def test_no_rows_is_no_data_not_zero() -> None:
    report = measure([Row("fr", "k", "bonjour")], fake_predict)
    assert report["accuracy"] == dict.fromkeys(CUTS)
    assert report["p99_ms"] is None
    assert (report["rows"], report["skipped"], report["by_kind"]) == (0, 1, {})
    assert "no data" in table(report)


def test_files_plain_and_compressed_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(
        "\ufefflang\tkind\ttext\tidx\r\nen\tchat\thi\u2028there\t1\r\n\r\n", encoding="utf-8"
    )
    with gzip.open(tmp_path / "b.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("text\tlang\tkind\nhola\tes\tchat\n")
    (tmp_path / "c.txt").write_text("not read")
    assert list(read_rows(data_paths(tmp_path))) == [Row("en", "chat", "hi\u2028there"), Row("es", "chat", "hola")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"lang\ttext\nen\thi\n", r"a\.tsv:1: no column kind"),
        ("a.tsv", b"", r"a\.tsv:1: no column lang, kind, text"),
        ("a.tsv", b"lang\tkind\ttext\nen\tchat\n", r"a\.tsv:2: 2 fields, the header has 3"),
        ("a.tsv", b"lang\tkind\ttext\nen\tchat\t\xff\n", r"a\.tsv: cannot be read as UTF-8 text"),
        ("a.tsv.gz", b"lang\tkind\ttext\n", r"a\.tsv\.gz: cannot be read"),
        ("a.tsv.gz", gzip.compress(b"lang\tkind\ttext\n" * 50, mtime=0)[:-12], r"a\.tsv\.gz: cannot be"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(data_paths(tmp_path)))


def test_bad_data_ends_with_2_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["--data", str(tmp_path)]) == 2
    assert "has no *.tsv or *.tsv.gz file" in capsys.readouterr().err


def test_own_lines_with_the_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"] >= 150
    assert set(report["by_kind"]) == {"chat", "mixed", "sentence"}
    assert report["accuracy"]["full"] >= 0.98
    assert report["precision"]["full"] >= 0.98
    assert report["accuracy"]["10"] >= 0.95
    assert main([]) == 0
    assert "precision" in capsys.readouterr().out
