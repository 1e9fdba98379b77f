"""Languages of sessions in one process: remembered for a while, never without a bound."""

from __future__ import annotations

from serve_app.core.sessions import Turn
from serve_app.edge.local_sessions import KEPT, LocalSessions
from serve_app.ports import Opened
from tests.fakes import FakeClock


async def language(sessions: LocalSessions, key: str = "s") -> str | None:
    return (await sessions.open(key, history=True)).language


async def test_a_session_is_remembered_until_it_is_silent_for_too_long() -> None:
    clock = FakeClock(100.0)
    sessions = LocalSessions(clock.now_s, ttl_s=10.0)
    sessions.remember(Opened("s"), "ja")
    found = []
    for clock.time_s in (100.0, 110.0, 110.001):
        found.append(await language(sessions))
    assert found == ["ja", "ja", None]
    assert await language(sessions, "other") is None


async def test_the_last_language_stands_and_starts_the_time_anew() -> None:
    clock = FakeClock(100.0)
    sessions = LocalSessions(clock.now_s, ttl_s=10.0)
    sessions.remember(Opened("s"), "ja")
    clock.time_s = 109.0
    sessions.remember(Opened("s"), "en")
    sessions.remember(Opened("s"), None, Turn("q", "a"))
    clock.time_s = 118.0
    assert await language(sessions) == "en"


async def test_reading_does_not_lengthen_a_session() -> None:
    clock = FakeClock(100.0)
    sessions = LocalSessions(clock.now_s, ttl_s=10.0)
    sessions.remember(Opened("s"), "ja")
    clock.time_s = 109.0
    await language(sessions)
    clock.time_s = 111.0
    assert await language(sessions) is None


async def test_the_one_that_spoke_longest_ago_goes_first() -> None:
    sessions = LocalSessions(FakeClock().now_s, kept=2)
    for key in ("a", "b", "a", "c"):
        sessions.remember(Opened(key), "en")
    assert [await language(sessions, key) for key in ("a", "b", "c")] == ["en", None, "en"]


async def test_nothing_else_is_kept_and_answers_say_so() -> None:
    sessions = LocalSessions(FakeClock().now_s)
    opened = await sessions.keep_pick(await sessions.open("s", history=True), "qwen-chat", "cloud-b")
    sessions.remember(opened, "ja", Turn("q", "a"))
    assert await sessions.open("s", history=True) == Opened("s", "ja", store="off")
    assert KEPT == 100_000
