"""The arithmetic of limits: buckets, slots, and what a request asks of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.admission import (
    Admitted,
    Ask,
    Bucket,
    Refused,
    Slot,
    Spent,
    State,
    decide,
    give_back,
    is_batch,
    level_at,
    slots_of,
    trace_root,
)
from serve_app.core.table import AdmissionRules, Tenant, TenantLimits
from tests.fakes import agent

RULES = AdmissionRules()
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def a_tenant(**changes: object) -> Tenant:
    return Tenant("acme", (), frozenset({"any"}), **changes)  # type: ignore[arg-type]


def judge(ask: Ask, state: State | None = None, now_s: float = 100.0, share: int = 1) -> Admitted | Refused:
    return decide(ask, state or State(), now_s, slot_free_s=8.0, share=share)


def test_without_limits_everything_is_admitted() -> None:
    assert judge(Ask("acme", 10**9)) == Admitted(None, None)
    assert not Ask("acme", 10**9).is_limited


def test_a_bucket_starts_full_and_holds_a_minute() -> None:
    assert judge(Ask("acme", 30, 60, 90)) == Admitted(Bucket(59, 100.0), Bucket(60, 100.0))
    assert level_at(Bucket(0, 100.0), 60, 130.0) == 30
    assert level_at(Bucket(50, 100.0), 60, 1000.0) == 60
    # A clock that steps back refills nothing and takes nothing.
    assert level_at(Bucket(5, 100.0), 60, 90.0) == 5
    # A limit that was lowered counts at once.
    assert level_at(Bucket(50, 100.0), 10, 100.0) == 10


def test_a_refusal_says_when_there_is_enough() -> None:
    empty = State(Bucket(0.25, 100.0), Bucket(10, 100.0))
    assert judge(Ask("acme", 5, 60, 600), empty) == Refused("requests_limit", 0.75)
    assert judge(Ask("acme", 40, None, 600), empty) == Refused("tokens_limit", 3.0)
    # The longer wait is the one that is told: after the shorter one it would be refused again.
    assert judge(Ask("acme", 40, 60, 600), empty) == Refused("tokens_limit", 3.0)


def test_more_than_a_whole_bucket_is_late_never_impossible() -> None:
    taken = judge(Ask("acme", 250, None, 100))
    assert taken == Admitted(None, Bucket(-150, 100.0))
    later = State(tokens=taken.tokens)  # type: ignore[union-attr]
    assert judge(Ask("acme", 1, None, 100), later) == Refused("tokens_limit", pytest.approx(90.6))
    assert isinstance(judge(Ask("acme", 1, None, 100), later, now_s=190.7), Admitted)


def test_a_slot_is_refused_when_all_are_taken() -> None:
    ask = Ask("acme", 1, slots=(Slot("tenant/acme", 2, "concurrency_limit"), Slot("batch/a", 8, "batch_limit")))
    assert isinstance(judge(ask, State(held={"tenant/acme": 1})), Admitted)
    assert judge(ask, State(held={"tenant/acme": 2})) == Refused("concurrency_limit", 4.0)
    assert judge(ask, State(held={"batch/a": 8})) == Refused("batch_limit", 1.0)


def test_routers_that_do_not_see_each_other_divide_each_limit() -> None:
    ask = Ask("acme", 10, 9, 90, (Slot("tenant/acme", 6, "concurrency_limit"),))
    assert judge(ask, share=3) == Admitted(Bucket(2, 100.0), Bucket(20, 100.0))
    assert isinstance(judge(ask, State(held={"tenant/acme": 2}), share=3), Refused)


def test_a_limit_smaller_than_the_number_of_routers_is_slow_not_shut() -> None:
    ask = Ask("acme", 1, 1, slots=(Slot("tenant/acme", 1, "concurrency_limit"),))
    taken = judge(ask, share=4)
    assert taken == Admitted(Bucket(-0.75, 100.0), None)
    refused = judge(ask, State(requests=taken.requests), share=4)  # type: ignore[union-attr]
    assert refused == Refused("requests_limit", pytest.approx(240.0))


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 1500)), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_over_time_no_more_is_taken_than_two_buckets_and_the_rate(
    limit: int, asks: list[tuple[float, int]], share: int
) -> None:
    now_s, bucket, taken, largest = 0.0, None, 0.0, 0
    for pause_s, tokens in asks:
        now_s += pause_s
        answer = judge(Ask("acme", tokens, None, limit), State(tokens=bucket), now_s, share)
        if isinstance(answer, Admitted):
            bucket, taken, largest = answer.tokens, taken + tokens, max(largest, tokens)
        else:
            assert answer.retry_after_s > 0
            then_s = now_s + answer.retry_after_s + 1e-6
            after = judge(Ask("acme", tokens, None, limit), State(tokens=bucket), then_s, share)
            assert isinstance(after, Admitted)
    per_minute = limit / share
    assert taken <= per_minute + per_minute * now_s / 60 + largest + 1e-6


@pytest.mark.parametrize(
    ("spent", "tokens_back", "requests_back"),
    [
        (Spent(True, 30, 1.0), 70, 0),
        (Spent(True, 130, 1.0), -30, 0),
        (Spent(True, None, 1.0), 0, 0),
        (Spent(False, None, 1.0), 100, 1),
    ],
)
def test_what_comes_back_at_the_end(spent: Spent, tokens_back: int, requests_back: int) -> None:
    assert (spent.tokens_back(Ask("acme", 100)), spent.requests_back) == (tokens_back, requests_back)


def test_giving_back_never_fills_above_the_limit() -> None:
    assert give_back(Bucket(90, 100.0), 50, 100, 100.0) == Bucket(100, 100.0)
    assert give_back(Bucket(10, 100.0), -50, 100, 100.0) == Bucket(-40, 100.0)
    assert give_back(None, 50, 100, 100.0) is None


@pytest.mark.parametrize(
    ("traceparent", "root"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"01-{TRACE}-00f067aa0ba902b7-01-more", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}", None),
        ("", None),
        (None, None),
    ],
)
def test_the_root_of_a_trace(traceparent: str | None, root: str | None) -> None:
    assert trace_root(traceparent) == root


@pytest.mark.parametrize(
    ("priority", "intent", "batch"),
    [(100, None, False), (50, "customer_service", False), (49, None, True), (1000, "batch", True)],
)
def test_batch_is_said_or_of_low_priority(priority: int, intent: str | None, batch: bool) -> None:
    assert is_batch(a_tenant(priority=priority), intent, RULES) is batch


def slots(tenant: Tenant, **known: object) -> list[tuple[str, int]]:
    given = {"intent": None, "traceparent": None, "session_id": None, **known}
    made = slots_of(RULES, tenant, agent("qwen-chat", slots=5, min_replicas=2), **given)  # type: ignore[arg-type]
    return [(s.subject, s.limit) for s in made]


def test_slots_are_those_of_tenant_batch_trace_and_session() -> None:
    assert slots(a_tenant()) == []
    limited = a_tenant(limits=TenantLimits(concurrent=7))
    root = f"00-{TRACE}-00f067aa0ba902b7-01"
    assert slots(limited, intent="batch", traceparent=root, session_id="s1") == [
        ("tenant/acme", 7),
        ("batch/qwen-chat--12345678", 5),
        (f"trace/acme/{TRACE}", 16),
        ("session/acme/s1", 16),
    ]


def test_batch_has_one_slot_at_least() -> None:
    made = slots_of(
        RULES, a_tenant(), agent("a", slots=1, min_replicas=0), intent="batch", traceparent=None, session_id=None
    )
    assert [s.limit for s in made] == [1]
