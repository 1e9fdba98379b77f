"""The coordinator's benchmark: its goals, its documents, and its input rules."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.coordinator import fits, main, table
from benchmarks.coordinator_regions import documents
from serve_app.edge.fleet_documents import config_of, wanted_of

GOOD: dict[str, Any] = {
    "regions": 200,
    "targets": 20,
    "seconds": 30.0,
    "changing": 0.01,
    "cpu_cores": 0.31,
    "resident_mib": 150.0,
    "reports_per_s": 200.0,
    "report_bytes": 11000,
    "messages_per_s": 290.0,
    "sent_mib_per_s": 6.0,
    "longest_gap_s": 1.4,
    "generation": 30,
    "regions_ready": 200,
    "links_ended": 0,
}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"cpu_cores": 0.5}, False),
        ({"resident_mib": 300.0}, False),
        ({"regions_ready": 199}, False),
        ({"links_ended": 1}, False),
    ],
)
def test_the_goals(change: dict[str, Any], kept: bool) -> None:
    assert fits(GOOD | change) is kept


def test_the_table_names_goals_and_figures() -> None:
    text = table(GOOD)
    assert "200 regions x 20 targets" in text and "1.0% of the regions" in text
    assert "0.310 cores   (goal: under 0.5)" in text and "150 MiB     (goal: under 300)" in text


def test_documents_are_whole_and_every_target_has_a_release() -> None:
    wanted = wanted_of(config_of(documents(3, 6)))
    assert [r.name for r in wanted.regions] == ["region-000", "region-001", "region-002"]
    assert len(wanted.expected) == 18


@pytest.mark.parametrize("words", [["--regions", "0"], ["--targets", "3"], ["--seconds", "0"], ["--changing", "2"]])
def test_what_cannot_be_measured_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "allowed: --regions 1 to 999" in capsys.readouterr().err
