"""The benchmark of the choice: a fleet in which there is something to choose, and JSON that can be read."""

from __future__ import annotations

import json

import pytest

from benchmarks import pick as benchmark
from serve_app.core import pick
from serve_app.core.scorers import default_weights


def test_the_fleet_has_something_of_everything() -> None:
    choice = pick.choose(benchmark.fleet(50), benchmark.wish(None), default_weights())
    assert len(choice.candidates) == 50
    assert {c.mark for c in choice.candidates} == {"", "over limit"}
    assert {c.dropped for c in choice.candidates} == {None, "is ejected"}
    assert len({c.tier for c in choice.candidates}) >= 4


def test_it_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = benchmark.main(["--targets", "5", "--calls", "100"])
    told = json.loads(capsys.readouterr().out)
    assert (told["targets"], told["calls"]) == (5, 100)
    for kind in ("sessionless", "session"):
        assert 0 < told[kind]["p50_us"] <= told[kind]["p99_us"]
    assert status == (1 if benchmark.too_slow(told) else 0)


@pytest.mark.parametrize(
    ("sessionless_us", "session_us", "faults"),
    [
        (200.0, 12.5, []),
        (200.1, 200.0, ["sessionless: p99 200.1 µs, at most 200 µs"]),
        (150.0, 1234.5, ["session: p99 1234.5 µs, at most 200 µs"]),
        (201.0, 202.0, ["sessionless: p99 201 µs, at most 200 µs", "session: p99 202 µs, at most 200 µs"]),
    ],
)
def test_its_status_is_whether_the_choice_is_quick_enough(
    sessionless_us: float,
    session_us: float,
    faults: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = {False: sessionless_us, True: session_us}
    monkeypatch.setattr(benchmark, "measure", lambda *_, sessions: {"p50_us": 9.0, "p99_us": measured[sessions]})
    assert benchmark.main([]) == (1 if faults else 0)
    assert capsys.readouterr().err.splitlines() == faults


@pytest.mark.parametrize("bad", [["--targets", "0"], ["--calls", "99"]])
def test_too_few_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmark.main(bad)
    assert ended.value.code == 2
    assert "at least" in capsys.readouterr().err
