"""The simulation: its clock, load, engine and figures, and that broken decisions break its promises."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import measure, region, traffic
from benchmarks.simulate.__main__ import main
from benchmarks.simulate.clock import Clock
from benchmarks.simulate.engine import Engine, Heard, Job, Speed
from benchmarks.simulate.links import Links
from benchmarks.simulate.result import Promise
from benchmarks.simulate.traffic import Request, Shape
from benchmarks.simulate.world import WARM_S, Fleet, World
from cluster_configs.load import SHIPPED, load_paths
from serve_app.core.pick import choose
from serve_app.core.reports import RegionState

PARTS = ("asia", "europe", "americas")
FLEET = Fleet(parts=PARTS, slots=20, prices=[1.0] * 3, clouds=["a", "b", "c"])


def test_events_happen_in_order_of_time_then_of_planning() -> None:
    clock, seen = Clock(), list[Any]()
    clock.at(2.0, seen.append, "late")
    clock.at(1.0, seen.append, "first")
    clock.at(1.0, seen.append, "second")
    clock.every(1.5, 0.5, lambda: seen.append(clock.now_s))
    clock.feed(iter([(0.1, "a"), (1.9, "b"), (9.0, "never")]), seen.append)
    clock.run(2.5)
    assert seen == ["a", 0.5, "first", "second", "b", "late", 2.0] and clock.now_s == 2.5


def test_load_has_the_number_the_rate_and_the_sessions_that_were_asked_for() -> None:
    shape = Shape(in_sessions=0.5, turns=4.0, think_s=2.0)
    made = list(traffic.steady(random.Random(1), [(3.0, "asia"), (1.0, "europe")], 4000, 10.0, 40.0, shape))
    times = [at_s for at_s, _ in made]
    assert len(made) == 4000 and times == sorted(times) and times[0] >= 10.0
    assert times[-1] == pytest.approx(50.0, abs=3.0)
    # As dense in its first quarter as in the whole: sessions have been going on before.
    assert sum(t < 20.0 for t in times) == pytest.approx(1000, rel=0.15)
    assert sum(r.session is not None for _, r in made) == pytest.approx(2000, rel=0.1)
    assert Counter(r.entry for _, r in made)[0] == pytest.approx(3000, rel=0.05)
    assert made == list(traffic.steady(random.Random(1), [(3.0, "asia"), (1.0, "europe")], 4000, 10.0, 40.0, shape))


def test_a_turn_shares_what_was_said_before() -> None:
    shape = Shape(in_sessions=1.0, turns=5.0, think_s=1.0)
    last: dict[str | None, Request] = {}
    for _, request in traffic.steady(random.Random(2), [(1.0, "asia")], 500, 0.0, 100.0, shape):
        if request.session in last and request.shared_tokens < traffic.MOST_CONTEXT:
            before = last[request.session]
            assert request.shared_tokens == before.prompt_tokens + before.output_tokens
            assert request.prompt_tokens > request.shared_tokens and request.language == before.language
        last[request.session] = request


def test_token_ratios_are_the_shipped_ones() -> None:
    assert dict(load_paths([SHIPPED], {}).routes.spec.languages.token_ratio) == traffic.TOKEN_RATIO


def test_a_day_has_its_load_where_people_are_awake() -> None:
    made = [r for _, r in traffic.built_in_day(random.Random(3), PARTS, 6000, 2400.0, Shape(think_s=1.0))]
    at_noon_there = {0: 450.0, 1: 1100.0, 2: 1700.0}  # seconds of a day of 2400
    for entry, noon_s in at_noon_there.items():
        near = Counter(r.entry for r in made if abs(r.at_s - noon_s) < 100.0)
        assert near.most_common(1)[0][0] == entry


class Runs:
    """An engine with somebody who notes what it says."""

    def __init__(self, **changes: Any) -> None:
        self.clock, self.said = Clock(), list[tuple[float, str, str]]()
        told: dict[str, Any] = {"slots": 1, "replicas": 1, "cache_tokens": 1000, "queue_s": 10.0, **changes}
        self.engine = Engine(self.clock, speed=Speed(prefill=100.0, decode=10.0), **told)

    def submit(self, name: str, prompt: int, output: int, session: str | None = None, shared: int = 0) -> Job:
        job = Job(Request(0.0, 0, "en", prompt, output, session, shared), attempt=1)

        def note(what: str) -> Any:
            return lambda _: self.said.append((round(self.clock.now_s, 3), name, what))

        self.engine.submit(job, Heard(note("first"), note("ended"), note("timed out")))
        return job


def test_an_engine_works_in_order_with_its_slots() -> None:
    runs = Runs()
    runs.submit("a", 100, 10)
    second = runs.submit("b", 100, 10)
    [report] = runs.engine.reports("app", "digest")
    assert (report.load.running, report.load.waiting, report.load.queue_wait_p95_ms) == (1, 1, 0.0)
    runs.clock.run(10.0)
    assert runs.said == [(1.0, "a", "first"), (2.0, "a", "ended"), (3.0, "b", "first"), (4.0, "b", "ended")]
    assert second.wait_ms == 2000.0 and runs.engine.busy_s == 4.0


def test_who_waits_too_long_is_given_back_once_and_never_run() -> None:
    runs = Runs(queue_s=1.5)
    for name in "ab":
        runs.submit(name, 100, 10)
    runs.clock.run(10.0)
    assert [(at_s, name) for at_s, name, what in runs.said if what == "timed out"] == [(1.5, "b")]
    assert ("b", "first") not in [(name, what) for _, name, what in runs.said]


def test_a_prefix_is_worked_out_once_while_there_is_room() -> None:
    runs = Runs(cache_tokens=250)
    runs.submit("one", 100, 10, "s", 0)
    runs.clock.run(2.0)
    runs.submit("two", 150, 10, "s", 110)
    runs.clock.run(10.0)
    assert runs.said[2] == (2.4, "two", "first") and runs.engine.hit_tokens == 110
    runs.submit("other", 200, 10, "t", 0)
    runs.clock.run(20.0)
    runs.submit("three", 200, 10, "s", 160)
    assert runs.engine.hit_tokens == 110 and runs.engine.shared_tokens == 270


def test_replicas_share_what_runs_and_waits() -> None:
    runs = Runs(slots=5, replicas=2)
    for name in "abcdefgh":
        runs.submit(name, 100, 10)
    loads = [r.load for r in runs.engine.reports("app", "digest")]
    assert [(x.running, x.waiting) for x in loads] == [(3, 2), (2, 1)]
    assert {len(runs.engine.die()), len(runs.said)} == {8, 0}
    runs.clock.run(10.0)
    assert runs.said == []


def test_beats_take_their_way_and_silence_grows() -> None:
    links = Links(["a", "b"], [0.0, 180.0])
    way_s = links.one_way_s("a", "b")
    assert way_s == pytest.approx(0.126) and links.one_way_s("a", "a") == 0.0
    assert links.views("b", 0.0)[0].silent_s is None
    state = RegionState("a", "healthy", "")
    links.beat("a", state, 1.0)
    assert links.views("b", 1.1)[0].silent_s is None
    [view] = links.views("b", 2.0)
    assert (view.region, view.state) == ("a", state)
    assert (view.silent_s, view.network_ms) == (pytest.approx(0.874), pytest.approx(252.0))


def test_turns_of_a_curve() -> None:
    assert measure.turns([0.0, 0.1, 0.2, 0.3, 0.28, 0.31], 0.1) == 0
    assert measure.turns([0.0, 0.5, 0.1, 0.5, 0.1], 0.1) == 3
    assert measure.turns([0.0, 0.5, 0.1, 0.5, 0.1], 0.45) == 0
    assert measure.turns([], 0.1) == 0


def world(**changes: Any) -> World:
    return World(replace(FLEET, **changes), 1, lambda *_: None)


def load(requests: int, duration_s: float, shape: Shape, users: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Any:
    entries = list(zip(users, PARTS, strict=True))
    return traffic.steady(random.Random(5), entries, requests, WARM_S, duration_s, shape)


def dark(requests: int = 300) -> World:
    made = world()
    made.clock.at(WARM_S + 5.0, made.regions["asia-0"].die)
    made.run(load(requests, 12.0, Shape(in_sessions=0.3)), WARM_S + 20.0)
    return made


def test_a_region_in_the_dark_gets_nothing_once_it_is_seen() -> None:
    made = dark()
    assert 0 < max(at_s for at_s, _ in made.tally.into_dark) - (WARM_S + 5.0) <= 2.0
    assert made.coordinator.phase_of("asia-0") == "lost"
    tally = made.tally
    unanswered = tally.lost["entry"] + measure.failed(tally)
    assert len(tally.at_s) + unanswered == tally.requests == 300
    assert measure.failed(tally) == 0 and tally.moved_entry > 0
    assert all(tally.region[i] for i, at_s in enumerate(tally.at_s) if at_s > WARM_S + 7.0)


def test_a_choice_that_is_blind_to_health_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(snapshot: Any, *args: Any, **named: Any) -> Any:
        targets = tuple(replace(t, health="healthy", breaker="closed") for t in snapshot.targets)
        return choose(replace(snapshot, targets=targets), *args, **{**named, "blocked": ()})

    monkeypatch.setattr(region, "choose", blind)
    assert max(at_s for at_s, _ in dark().tally.into_dark) - (WARM_S + 5.0) > 2.0


def test_a_region_that_comes_back_is_ramped_and_has_forgotten() -> None:
    made = world()
    back = made.regions["asia-0"]
    made.clock.at(WARM_S + 3.0, back.die)
    made.clock.at(WARM_S + 8.0, back.come_back)
    made.run(load(300, 15.0, Shape(in_sessions=1.0)), WARM_S + 12.0)
    [seen] = [t for t in made.regions["europe-1"].snapshot.targets if t.region == "asia-0"]
    assert seen.health == "healthy" and 0.1 <= seen.weight < 0.5
    assert back.epoch == 2 and back.snapshot.epoch == 2
    assert made.coordinator.phase_of("asia-0") == "ready"


@pytest.mark.parametrize(("use_sessions", "least", "most"), [(True, 0.95, 1.0), (False, 0.0, 0.9)])
def test_turns_of_a_session_stay_together_only_by_sessions(use_sessions: bool, least: float, most: float) -> None:
    made = world(use_sessions=use_sessions)
    made.tally.turns = {}
    talk = Shape(in_sessions=1.0, turns=6.0, think_s=1.0)
    made.run(load(400, 15.0, talk, users=(1.0, 0.0, 0.0)), WARM_S + 15.0)
    pairs = [(a[1], b[1]) for t in made.tally.turns.values() for a, b in pairwise(t)]
    share = sum(a == b for a, b in pairs) / len(pairs)
    assert len(pairs) > 100 and least <= share <= most


def test_moved_sessions_are_counted_around_a_moment() -> None:
    made = world()
    made.tally.turns = {
        "stays": [(1.0, 1), (3.0, 1)],
        "had to": [(1.0, 0), (3.0, 2)],
        "need not": [(1.0, 1), (3.0, 2)],
        "too old": [(-9.0, 1), (3.0, 2)],
    }
    assert measure.moved(made.tally, 2.0, 5.0, 0) == {"sessions": 3, "moved": 2, "needless": 1}


def test_a_promise_without_a_measurement_is_broken() -> None:
    assert Promise("x", 1.0, "at most", 1.0).is_kept and not Promise("x", 1.1, "at most", 1.0).is_kept
    assert Promise("x", 1.0, "at least", 1.0).is_kept and not Promise("x", None, "at most", 1.0).is_kept


def traces(folder: Path) -> Path:
    for name, text in {
        "composed_3region_day.csv.gz": "t_seconds_utc,region,session,turn,lang,input_tokens,output_tokens,"
        "shared_prefix_tokens\n60,asia,s1,1,zh-Hans,100,20,0\n90,asia,s1,2,zh-Hans,150,20,120\n",
        "mooncake_conversation_sessions_derived.csv.gz": "timestamp_ms,session,turn,input_tokens,output_tokens,"
        "shared_prefix_tokens\n0,7,1,100,20,0\n2000,7,2,150,20,120\n",
    }.items():
        (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder


def test_traces_are_read_and_thickened(tmp_path: Path) -> None:
    folder = traces(tmp_path)
    day = traffic.composed_day(folder / "composed_3region_day.csv.gz", random.Random(1), PARTS, 20, 3600.0)
    made = [r for _, r in day]
    assert len(made) == 20 and {r.language for r in made} == {"zh"} and {r.entry for r in made} == {0}
    assert len({r.session for r in made}) == 10 and sum(r.shared_tokens for r in made) == 1200
    file = folder / "mooncake_conversation_sessions_derived.csv.gz"
    talks = traffic.mooncake(file, [(1.0, "asia"), (1.0, "europe")], random.Random(1), 4)
    assert len(talks) == 4 and {r.session for r in talks} == {"7-0", "7-1"}
    # A session's user stays where he is, and keeps his times.
    first, second = (r for r in talks if r.session == "7-0")
    assert second.at_s - first.at_s == pytest.approx(2.0) and first.entry == second.entry


def test_a_trace_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "composed_3region_day.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    assert main(["day", "--data", str(tmp_path)]) == 2
    assert "composed_3region_day.csv.gz: no column t_seconds_utc" in capsys.readouterr().err
    assert main(["affinity", "--data", str(tmp_path)]) == 2
    assert "mooncake_conversation_sessions_derived.csv.gz" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--regions", "1"], ["--requests", "0"], ["storm"]])
def test_bad_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_a_scenario_prints_json_and_its_status_is_its_promises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["loss", "--regions", "2", "--requests", "1000", "--json"]
    status = main(arguments)
    [told] = json.loads(capsys.readouterr().out)
    assert (told["scenario"], told["regions"], told["requests"]) == ("loss", 2, 1000)
    assert status == (0 if told["kept"] else 1) and told["kept"] == all(p["kept"] for p in told["promises"])
    assert told["figures"]["picks kept"]["sessions"] > 50
