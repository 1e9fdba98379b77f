"""Medians, quartiles, ratios and the JSON that others read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.gateway_picture import panels_of, svg
from benchmarks.gateway_report import FIGURES, Report, Sample, Spread, quantile, sample_of, spread


def sample(target: str, number: int, rps: float, load: str = "64", failures: dict[str, int] | None = None) -> Sample:
    figures = dict.fromkeys(FIGURES, rps)
    return Sample("tiny-qwen", load, target, number, 10, failures or {}, figures, 0.5)


REPORT = Report(
    [
        *(sample("direct", n, rps) for n, rps in enumerate((100.0, 200.0, 400.0))),
        *(sample("grix", n, rps) for n, rps in ((0, 80.0), (2, 320.0))),
        sample("grix", 1, 120.0, failures={"status 503": 2}),
        sample("direct", 0, 150.0, "open-0.5"),
        sample("direct", 0, 10.0, "1"),
        sample("direct", 0, 50.0, "16"),
    ],
    {"cores": 2},
)


def test_quantiles_lie_between_ranks() -> None:
    assert quantile([], 0.5) is None
    assert quantile([7.0], 0.99) == 7.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert spread([None, 1.0, 2.0, 3.0, None]) == Spread(2.0, 1.5, 2.5)
    assert spread([None]) is None


def test_a_sample_out_of_an_answer() -> None:
    answer: dict[str, Any] = {
        **{"ttft_ms": [1.0, 3.0], "total_ms": [10.0, 30.0], "failures": {"no [DONE]": 1}},
        **{"elapsed_s": 0.5, "client_cpu_s": 0.01},
    }
    got = sample_of("m", "1", "grix", 0, answer, 0.1, 0.2)
    assert got.figures["throughput_rps"] == 4.0
    assert got.figures["total_p50_ms"] == 20.0 and got.figures["ttft_p50_ms"] == 2.0
    assert got.figures["cpu_ms_per_request"] == pytest.approx(50.0)
    assert got.client_cpu_ms_per_request == pytest.approx(5.0)


def test_no_success_is_no_figure_not_zero() -> None:
    answer = {"ttft_ms": [], "total_ms": [], "failures": {"x": 3}, "elapsed_s": 0.5, "client_cpu_s": 0.01}
    got = sample_of("m", "1", "grix", 0, answer, 0.1, 0.2)
    assert set(got.figures.values()) == {None}
    cell = Report([got], {}).as_json()["m"]["1"]["grix"]
    assert cell["throughput_rps"] is None and cell["failed"] == 3


def test_json_has_streams_only_with_medians_and_the_sum_of_failures() -> None:
    told = REPORT.as_json()
    assert list(told) == ["tiny-qwen"] and list(told["tiny-qwen"]) == ["1", "16", "64"]
    grix = told["tiny-qwen"]["64"]["grix"]
    assert list(grix) == [*FIGURES, "failed"]
    assert grix["throughput_rps"] == 120.0 and grix["failed"] == 2
    json.dumps(told)


def test_ratios_pair_rounds() -> None:
    ratio = REPORT.against_direct("tiny-qwen", "64", "grix", "throughput_rps", lambda a, b: a / b)
    assert ratio is not None and ratio.median == pytest.approx(0.8)
    assert REPORT.against_direct("tiny-qwen", "1", "grix", "throughput_rps", lambda a, b: a / b) is None


def test_table_and_file_have_every_load(tmp_path: Path) -> None:
    text = REPORT.table()
    assert [line for line in text.splitlines() if line.startswith("tiny-qwen")] == [
        "tiny-qwen, 1 stream: median (quartiles)",
        "tiny-qwen, 16 streams: median (quartiles)",
        "tiny-qwen, 64 streams: median (quartiles)",
        "tiny-qwen, open-0.5: median (quartiles)",
    ]
    REPORT.write(tmp_path / "new")
    full = json.loads((tmp_path / "new/gateway.json").read_text())
    assert full["facts"] == {"cores": 2} and len(full["samples"]) == 9
    grix = next(c for c in full["cells"] if c["target"] == "grix")
    assert grix["q1_median_q3"]["throughput_ratio"][1] == 0.8 and grix["completed"] == 30


def test_a_noisy_machine_is_told() -> None:
    answer = {"ttft_ms": [], "total_ms": [], "failures": {}, "elapsed_s": 0.5, "client_cpu_s": 0.01}
    noisy = [sample_of("m", "1", "grix", n, answer, 0.1, cores) for n, cores in enumerate((0.5, 1.5))]
    assert Report(noisy, {}).noise() == "others on the machine, idle targets included: 1.00 (0.75-1.25) cores"
    assert Report(noisy, {}).full()["samples"][1]["others_cores"] == 1.5


def test_picture_is_xml_with_a_bar_for_every_target() -> None:
    text = svg(REPORT, "2 cores & more")
    root = ElementTree.fromstring(text)
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert names.count("grix") == 2, "throughput and CPU at 64 streams; grix has no other samples"
    assert names.count("direct") == 4 and "2 cores & more" in names


def test_panels_show_the_loads_that_were_measured() -> None:
    assert [p.load for p in panels_of(["1", "16", "64", "open-0.5"])] == ["1", "16", "64", "64"]
    assert panels_of(["open-0.5"]) == []
