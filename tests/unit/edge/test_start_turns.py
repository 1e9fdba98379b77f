"""Turns of starting engines: real locks of real files, freed by whatever ends a process; time is moved by hand."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from serve_app.edge import start_turns
from serve_app.edge.start_turns import LOOK_S, MOST_IN_PLACE, StartTurns, starts_at_once, starts_folder, turns_folder

#: Takes a turn and keeps it.
HOLDER = """
import asyncio, sys
from pathlib import Path
from serve_app.edge.start_turns import StartTurns
async def hold():
    async with StartTurns(Path(sys.argv[1]), Path(sys.argv[2]), 1).held("other"):
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(hold())
"""


#: A machine's clock has run before the first start.
BEGAN_S = 1000.0


class Clock:
    """Sleeps at once; what shall happen at a time happens while somebody sleeps."""

    def __init__(self) -> None:
        self.time_s = BEGAN_S
        self.at: dict[float, AsyncExitStack] = {}

    def now_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        if (ends := self.at.pop(self.time_s, None)) is not None:
            await ends.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def turns(folder: Path, clock: Clock, at_once: int = 1) -> StartTurns:
    return StartTurns(folder / "turns", folder / "known", at_once, clock.now_s, clock.sleep)


async def test_more_than_so_many_wait_until_one_has_started(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = AsyncExitStack()
    async with AsyncExitStack() as second:
        await first.enter_async_context(turns(tmp_path, clock, 2).held("one"))
        await second.enter_async_context(turns(tmp_path, clock, 2).held("two"))
        assert clock.time_s == BEGAN_S and caplog.messages == []
        clock.at[BEGAN_S + 3 * LOOK_S] = first
        async with turns(tmp_path, clock, 2).held("three"):
            assert clock.time_s == BEGAN_S + 3 * LOOK_S
    assert caplog.messages == [
        "three waits for another engine's start on this machine; at once: 2",
        "three starts after a wait of 0.8 s",
    ]


async def test_a_start_that_fails_gives_its_turn_back(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(ValueError, match="no such model"):
        async with turns(tmp_path, clock).held("one"):
            raise ValueError("no such model")
    async with turns(tmp_path, clock).held("two"):
        assert clock.time_s == BEGAN_S


async def test_the_turn_of_a_killed_process_is_free_and_of_a_living_one_is_not(tmp_path: Path, clock: Clock) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "turns"), str(tmp_path / "other")],
        stdout=subprocess.PIPE,
        text=True,
    )
    kill = AsyncExitStack()
    kill.callback(holder.wait)
    kill.callback(os.kill, holder.pid, signal.SIGKILL)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        clock.at[BEGAN_S + 2 * LOOK_S] = kill
        async with turns(tmp_path, clock).held("one"):
            assert clock.time_s == BEGAN_S + 2 * LOOK_S and holder.returncode == -signal.SIGKILL
    finally:
        holder.kill()
        holder.communicate()


async def test_a_forked_engine_does_not_keep_the_turn_of_its_replica(tmp_path: Path, clock: Clock) -> None:
    async with turns(tmp_path, clock).held("one"):
        engine = os.fork()
        if engine == 0:
            signal.pause()
    try:
        async with turns(tmp_path, clock).held("two"):
            assert clock.time_s == BEGAN_S
    finally:
        os.kill(engine, signal.SIGKILL)
        os.waitpid(engine, 0)


async def test_where_there_can_be_no_locks_starts_are_not_limited(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "turns").write_text("somebody else's")
    async with turns(tmp_path, clock).held("one"), turns(tmp_path, clock).held("two"):
        assert clock.time_s == BEGAN_S
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "one does not wait for other engines' starts on this machine",
        "two does not wait for other engines' starts on this machine",
    ]


async def test_a_folder_that_a_link_leads_away_from_is_not_used(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "turns").symlink_to(tmp_path / "elsewhere")
    async with turns(tmp_path, clock).held("one"):
        assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_the_folders_are_private(tmp_path: Path, clock: Clock) -> None:
    some = turns(tmp_path, clock)
    async with some.held("one"):
        some.keep_usual_ms("a", 12.0)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("turns", "known")] == [0o700, 0o700]


async def hung(folder: Path, clock: Clock, number: int, at_once: int = 1) -> AsyncExitStack:
    """So many starts that hang, each from when it can have a turn."""
    held = AsyncExitStack()
    for n in range(number):
        await held.enter_async_context(turns(folder, clock, at_once).held(f"hung {n}"))
    return held


async def test_starts_that_hang_keep_others_waiting_for_five_minutes_where_none_has_ended_well(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with await hung(tmp_path, clock, 2, at_once=2):
        began_s = clock.time_s
        async with turns(tmp_path, clock, 2).held("one"):
            assert clock.time_s - began_s == 300.0 + LOOK_S
        assert caplog.messages == ["one does not wait for a start that takes longer than 300 s"]
        # In the place of each one more at a time, and no more than that.
        began_s, first = clock.time_s, AsyncExitStack()
        await first.enter_async_context(turns(tmp_path, clock, 2).held("two"))
        async with turns(tmp_path, clock, 2).held("three"):
            assert clock.time_s == began_s
            clock.at[began_s + 2.0] = first
            async with turns(tmp_path, clock, 2).held("four"):
                assert clock.time_s == began_s + 2.0


@pytest.mark.parametrize(
    ("longest_s", "overdue_s"), [(1.0, 60.0), (20.0, 60.0), (29.0, 87.0), (200.0, 600.0), (1200.0, 900.0)]
)
async def test_overdue_is_what_takes_three_times_as_long_as_the_longest_start(
    tmp_path: Path, clock: Clock, longest_s: float, overdue_s: float
) -> None:
    for took_s in (longest_s / 2, longest_s, longest_s / 4):
        async with turns(tmp_path, clock).held("before"):
            clock.time_s += took_s
    with pytest.raises(ValueError, match="no model"):
        async with turns(tmp_path, clock).held("one that fails says nothing of starts"):
            clock.time_s += 10 * longest_s
            raise ValueError("no model")
    async with await hung(tmp_path, clock, 1):
        began_s = clock.time_s
        async with turns(tmp_path, clock).held("one"):
            assert clock.time_s - began_s == overdue_s + LOOK_S


async def test_a_start_that_others_have_waited_long_for_is_not_overdue_by_their_waiting(
    tmp_path: Path, clock: Clock
) -> None:
    some = turns(tmp_path, clock)
    first = await hung(tmp_path, clock, 1)
    clock.time_s += 290.0
    second = AsyncExitStack()

    async def change() -> None:
        await first.aclose()
        await second.enter_async_context(turns(tmp_path, clock).held("second"))

    clock.at[clock.time_s + LOOK_S] = turned = AsyncExitStack()
    turned.push_async_callback(change)
    clock.at[clock.time_s + LOOK_S + 200.0] = second
    began_s = clock.time_s
    async with some.held("one"):
        assert clock.time_s - began_s == LOOK_S + 200.0


async def test_where_all_hang_there_is_an_end_to_more(tmp_path: Path, clock: Clock) -> None:
    began_s = clock.time_s
    async with await hung(tmp_path, clock, 1 + MOST_IN_PLACE) as all_of_them:
        assert clock.time_s - began_s == MOST_IN_PLACE * (300.0 + LOOK_S)
        clock.at[clock.time_s + 5000.0] = all_of_them
        began_s = clock.time_s
        async with turns(tmp_path, clock).held("one"):
            assert clock.time_s - began_s == 5000.0


async def test_a_turn_whose_holder_was_killed_tells_nothing_of_the_next(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "turns").mkdir(mode=0o700)
    for in_place in range(2):
        (tmp_path / "turns" / f"turn-0-{in_place}").write_text("1.000")
    async with await hung(tmp_path, clock, 1):
        began_s = clock.time_s
        async with turns(tmp_path, clock).held("one"):
            assert clock.time_s - began_s == 300.0 + LOOK_S


async def test_what_starts_came_to_is_kept_by_speed_and_the_best_counts(tmp_path: Path, clock: Clock) -> None:
    some = turns(tmp_path, clock)
    assert some.usual_ms("a" * 64) is None
    async with some.held("one"):
        for came_to_ms in (40.0, 25.5, 90.0):
            some.keep_usual_ms("a" * 64, came_to_ms)
    assert (some.usual_ms("a" * 64), some.usual_ms("b" * 64)) == (25.5, None)


@pytest.mark.parametrize("text", ["", "nan", "-3", "0", "inf", "much", "\udcff"])
def test_what_cannot_have_been_measured_is_not_known(tmp_path: Path, clock: Clock, text: str) -> None:
    (tmp_path / "known").mkdir(mode=0o700)
    (tmp_path / "known" / "usual-a").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert turns(tmp_path, clock).usual_ms("a") is None


def test_what_cannot_be_kept_is_not_known_next_time(tmp_path: Path, clock: Clock) -> None:
    some = turns(tmp_path, clock)
    (tmp_path / "known").write_text("somebody else's")
    some.keep_usual_ms("a", 12.0)
    assert some.usual_ms("a") is None


@pytest.mark.parametrize(("cores", "at_once"), [(1, 2), (2, 2), (8, 2), (12, 3), (64, 16)])
def test_how_many_at_once(monkeypatch: pytest.MonkeyPatch, cores: int, at_once: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert starts_at_once() == at_once


async def test_clusters_of_a_machine_share_turns_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    monkeypatch.setattr(start_turns, "MACHINE_TEMP", tmp_path)
    assert turns_folder() == tmp_path / f"grix-starts-{os.getuid()}"
    clusters = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(start_turns.tempfile, "gettempdir", lambda name=name: str(tmp_path / name))
        assert starts_folder() == tmp_path / name / f"grix-starts-{os.getuid()}"
        clusters.append(StartTurns(turns_folder(), starts_folder(), 1, clock.now_s, clock.sleep))
    one, two = clusters
    held = AsyncExitStack()
    await held.enter_async_context(one.held("one"))
    one.keep_usual_ms("a", 12.0)
    clock.at[BEGAN_S + 2 * LOOK_S] = held
    async with two.held("two"):
        assert clock.time_s == BEGAN_S + 2 * LOOK_S
    assert (one.usual_ms("a"), two.usual_ms("a")) == (12.0, None)
    # What is overdue too is the machine's: a cluster that has started nothing knows how long the others took.
    async with one.held("slow"):
        clock.time_s += 200.0
    began_s = clock.time_s
    async with one.held("hung"), two.held("two"):
        assert clock.time_s - began_s == 600.0 + LOOK_S


async def test_clusters_that_may_start_different_numbers_have_the_same_turns(tmp_path: Path, clock: Clock) -> None:
    async with await hung(tmp_path, clock, 1), turns(tmp_path, clock, 3).held("two"):
        clock.time_s += 400.0
        # The one turn of the first is overdue; the second turn of the other is not in its place.
        began_s = clock.time_s
        async with turns(tmp_path, clock).held("three"):
            assert clock.time_s == began_s
    assert sorted(file.name for file in (tmp_path / "turns").glob("turn-*")) == ["turn-0-0", "turn-0-1", "turn-1-0"]


async def test_a_turn_that_is_being_taken_is_not_judged_by_the_time_of_an_earlier_holder(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "turns").mkdir(mode=0o700)
    turn = tmp_path / "turns" / "turn-0-0"
    turn.write_text("1.000")
    taking, holding = os.open(tmp_path / "turns", os.O_RDONLY), os.open(turn, os.O_RDWR)
    for lock in (taking, holding):
        fcntl.flock(lock, fcntl.LOCK_EX)
    written, gone = AsyncExitStack(), AsyncExitStack()
    written.callback(os.close, taking)
    written.callback(turn.write_text, f"{BEGAN_S:.3f}")
    gone.callback(os.close, holding)
    clock.at |= {BEGAN_S + 5.0: written, BEGAN_S + 200.0: gone}
    async with turns(tmp_path, clock).held("one"):
        assert clock.time_s == BEGAN_S + 200.0 and caplog.messages == []


@pytest.mark.parametrize("mode", [0o777, 0o750])
async def test_a_folder_that_is_open_to_others_is_not_used(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    for name in ("turns", "known"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "known" / "usual-a").write_text("1.0")
    some = turns(tmp_path, clock)
    async with some.held("one"):
        some.keep_usual_ms("a", 0.5)
    assert list((tmp_path / "turns").iterdir()) == [] and some.usual_ms("a") is None
    assert (tmp_path / "known" / "usual-a").read_text() == "1.0"
    assert caplog.messages == [
        "one does not wait for other engines' starts on this machine: "
        f"{tmp_path / 'turns'} is open to other users; it has to have mode 0700"
    ]
