"""The autoscaling benchmark: traces, curves, the comparison, and what is printed."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from benchmarks import autoscale
from benchmarks.autoscale_picture import svg
from benchmarks.autoscale_policies import CONTENDERS, Pool, production
from benchmarks.autoscale_replica import Engine
from benchmarks.autoscale_report import Compared, Curves, Point, as_json, compared, over_at, peaks, table, verdicts
from benchmarks.autoscale_seen import Outcome, Seen
from benchmarks.autoscale_traces import CONVERSATION, DAY_S, Rates, Trace, TraceError, built_in, from_folder


def point(knob: float, over: float, gpu_hours: float, ups_and_downs: int = 1) -> Point:
    return Point(knob, over, over / 2, 0, gpu_hours, 2.0, ups_and_downs, ((0.0, 2, 2), (3600.0, 3, 2)))


def curves(ours: list[Point], theirs: list[Point], span_s: float = DAY_S) -> Curves:
    points = {name: theirs if name == "qps" else ours for name in CONTENDERS}
    return Curves("made", span_s, 1000, 2.0, [1.0, 4.0, 1.0], points)


def test_equal_gpu_hours_are_between_two_points() -> None:
    theirs = [point(0.5, 0.0, 100.0), point(0.9, 0.4, 60.0), point(0.7, 0.1, 80.0)]
    assert over_at(theirs, 80.0) == pytest.approx(0.1)
    assert over_at(theirs, 70.0) == pytest.approx(0.25)
    assert over_at(theirs, 59.0) is None and over_at(theirs, 101.0) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "kept", "ratio"),
    [(0.01, 0.04, True, 0.25), (0.02, 0.04, False, 0.5), (0.0, 0.0, True, None), (0.01, 0.0, False, float("inf"))],
)
def test_a_quarter_is_kept(ours: float, theirs: float, kept: bool, ratio: float | None) -> None:
    one = Compared(point(0.0, ours, 80.0), theirs)
    assert (one.is_kept, one.ratio) == (kept, ratio)
    assert Compared(point(0.0, ours, 80.0), None).is_kept is None


def test_peaks_rise_and_fall_by_as_much() -> None:
    assert peaks([1, 3, 1, 3, 1], 1.0) == 2
    assert peaks([1, 1.9, 1, 3], 1.0) == 0
    assert peaks([3, 1], 1.0) == 0
    assert peaks([], 1.0) == 0


def test_turns_and_pairs_are_counted_in_targets() -> None:
    outcome = Outcome([1], [0], gpu_s=7200.0)
    outcome.steps = [(0.0, 2, 2), (1.0, 3, 2), (2.0, 4, 2), (9.0, 4, 4), (30.0, 2, 4), (40.0, 3, 2), (50.0, 1, 1)]
    made = Point.of(0.5, outcome, DAY_S / 2)
    assert (made.turns_per_day, made.ups_and_downs, made.gpu_hours) == (6.0, 2, 2.0)


def test_the_json_has_exactly_what_it_promises() -> None:
    told = as_json([curves([point(0.0, 0.01, 80.0)], [point(0.5, 0.1, 70.0), point(0.7, 0.2, 90.0)])])
    assert list(told) == ["traces"]
    assert list(told["traces"]["made"]) == ["span_h", "queue_latency", "ongoing", "qps", "short_cooldown"]
    assert told["traces"]["made"]["span_h"] == 24.0
    [one] = told["traces"]["made"]["queue_latency"]
    assert one == {"knob": 0.0, "over_target_ratio": 0.01, "gpu_hours": 80.0, "direction_changes_per_day": 2.0}


def test_what_is_missed_is_said() -> None:
    theirs = [point(0.5, 0.1, 70.0), point(0.7, 0.1, 90.0)]
    found = curves([point(0.0, 0.02, 80.0), point(0.5, 0.05, 85.0, 3), point(1.0, 0.0, 95.0)], theirs)
    assert [one.is_kept for one in compared(found)] == [True, False, None]
    said = verdicts([found])
    assert "1 of 2 points" in said and "MISSED" in said and "outside of its curve" in said
    assert "0.5: 3, 1: 1; real peaks: 1: MISSED" in said
    assert "real peaks" in table(found)
    assert "MISSED, it never goes down" in verdicts([curves([point(0.0, 0.0, 95.0, 0)], theirs)])
    hour = curves([point(0.0, 0.02, 80.0)], theirs, span_s=3600.0)
    assert "0 of 0 points" in verdicts([hour]) and "(an hour)" in verdicts([hour])


def test_the_picture_is_xml() -> None:
    found = curves([point(0.0, 0.02, 80.0), point(0.5, 0.0, 85.0)], [point(0.5, 0.1, 70.0)])
    drawn = xml.etree.ElementTree.fromstring(svg([found, found]))
    assert len([one for one in drawn.iter() if one.tag.endswith("circle")]) == 2 * (3 * 2 + 1)


def test_every_policy_goes_up_under_load_and_never_over_its_bounds() -> None:
    config, scaling = production()
    pool = Pool(Engine(), 2.0, {**config, "min_replicas": 1, "max_replicas": 4}, scaling)
    for name, contender in CONTENDERS.items():
        for knob in contender.knobs:
            scale, target = contender.make(knob, pool), 2
            for second in range(1, 400):
                # Calls stand in the handle, before replicas that are full.
                seen = Seen(float(second), 1.0, 2, target, 300.0, 170.0, 20.0, ())
                target = scale(seen)
                assert 1 <= target <= 4, name
            assert target == 4, (name, knob)


def test_rates_become_requests_at_that_rate() -> None:
    made = Rates("made", 600.0, [1.0, 3.0, 1.0], CONVERSATION).trace(5.0, 1)
    assert len(made.at_s) == pytest.approx(5.0 * 1800.0, rel=0.1)
    assert list(made.at_s) == sorted(made.at_s) and made.at_s[-1] < made.span_s == 1800.0
    assert made.at_s == Rates("made", 600.0, [1.0, 3.0, 1.0], CONVERSATION).trace(5.0, 1).at_s
    wave = Rates("wave", 600.0, [0.0, 1.0], CONVERSATION, minute_sd=0.0).trace(1.0, 1)
    assert min(wave.at_s) >= 600.0


def test_built_in_load_has_days_and_hours() -> None:
    made = built_in(1)
    assert [load.name for load in made] == [
        *("like_azure_conv", "like_azure_code", "like_composed_day", "like_servegen", "square_wave")
    ]
    assert [load.span_s for load in made] == [3600.0, 3600.0, DAY_S, DAY_S, DAY_S]
    conversation = made[0]
    assert isinstance(conversation, Trace) and len(conversation.at_s) == pytest.approx(19_366, rel=0.1)


def write(folder: Path, name: str, lines: list[str]) -> None:
    with gzip.open(folder / f"{name}.gz", "wt") as file:
        file.write("\n".join(lines))


def test_traces_are_read_where_they_are(tmp_path: Path) -> None:
    here = tmp_path / "traces"
    here.mkdir()
    azure = [f"2023-11-16 18:15:{46 + i}.6805900,{100 + i},{i}" for i in range(3)]
    write(here, "AzureLLMInferenceTrace_conv.csv", ["TIMESTAMP,ContextTokens,GeneratedTokens", *azure])
    rates = [f"reason/deepseek-r1,{600 * i},{10 + i}" for i in range(145)]
    write(here, "servegen_rate_10min.csv", ["model,t_seconds,total_req_per_s", *rates])
    day = "t_seconds_utc,input_tokens,output_tokens,shared_prefix_tokens"
    write(here, "composed_3region_day.csv", [day, "10.5,100,7,60", "90000.0,50,7,0"])
    conversation, composed, servegen, wave = from_folder(tmp_path, 1)
    assert isinstance(conversation, Trace) and conversation.at_s == (0.0, 1.0, 2.0)
    assert list(conversation.output_tokens) == [1, 1, 2]
    assert isinstance(composed, Rates) and composed.relative[0] == composed.relative[2] == 1.0
    assert composed.sizes == [(40, 7), (50, 7)]
    assert isinstance(servegen, Rates) and servegen.span_s == DAY_S and len(servegen.relative) == 144
    assert wave.name == "square_wave"


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_a_broken_trace_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    assert autoscale.main(["--data", str(tmp_path)]) == 2
    assert "AzureLLMInferenceTrace_conv.csv" in capsys.readouterr().err


def test_no_trace_and_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace"):
        from_folder(tmp_path, 1)
    assert autoscale.main(["--traces", "tuesday"]) == 2


def test_an_hour_runs_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at_s = [2.0 * i for i in range(150)]
    short = Trace("short", 300.0, at_s, [500] * 150, [100] * 150)
    monkeypatch.setattr(autoscale, "built_in", lambda seed: [short])
    picture = tmp_path / "picture.svg"
    assert autoscale.main(["--json", "--jobs", "1", "--picture", str(picture)]) == 0
    told = json.loads(capsys.readouterr().out)["traces"]["short"]
    assert {name: len(told[name]) for name in CONTENDERS} == {name: len(c.knobs) for name, c in CONTENDERS.items()}
    assert all(p["gpu_hours"] >= 300 / 3600 * 0.99 for name in CONTENDERS for p in told[name])
    assert picture.read_text().startswith("<svg")
