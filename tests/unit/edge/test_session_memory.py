"""Languages of sessions: remembered for a while, never without a bound."""

from __future__ import annotations

from serve_app.edge.session_memory import KEPT, TTL_S, SessionMemory


def test_a_session_is_remembered_until_it_is_silent_for_too_long() -> None:
    memory = SessionMemory(ttl_s=10.0)
    memory.remember_language("s", "ja", 100.0)
    assert [memory.language("s", at_s) for at_s in (100.0, 110.0, 110.001)] == ["ja", "ja", None]
    assert memory.language("other", 100.0) is None


def test_the_last_language_stands_and_starts_the_time_anew() -> None:
    memory = SessionMemory(ttl_s=10.0)
    memory.remember_language("s", "ja", 100.0)
    memory.remember_language("s", "en", 109.0)
    assert memory.language("s", 118.0) == "en"


def test_reading_does_not_lengthen_a_session() -> None:
    memory = SessionMemory(ttl_s=10.0)
    memory.remember_language("s", "ja", 100.0)
    memory.language("s", 109.0)
    assert memory.language("s", 111.0) is None


def test_the_one_that_spoke_longest_ago_goes_first() -> None:
    memory = SessionMemory(kept=2)
    memory.remember_language("a", "en", 1.0)
    memory.remember_language("b", "en", 2.0)
    memory.remember_language("a", "en", 3.0)
    memory.remember_language("c", "en", 4.0)
    assert [memory.language(s, 5.0) for s in ("a", "b", "c")] == ["en", None, "en"]


def test_defaults_are_half_an_hour_and_a_hundred_thousand() -> None:
    assert (TTL_S, KEPT) == (1800.0, 100_000)
