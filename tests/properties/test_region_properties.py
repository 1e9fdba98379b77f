"""Whatever the regions do: few attempts, one hop, no call to whom a breaker keeps out, and nothing left running."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.retry import MAX_ATTEMPTS
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.ports import Accepted, Body, Head, Tail
from tests.fakes import BEARER, GOOD, HELLO, STREAMED, Stage, Step, failed, refused, two_regions

SCRIPTS: tuple[tuple[Step, ...], ...] = (
    GOOD,
    STREAMED,
    (failed("no_target"),),
    (failed("peer_silent"),),
    refused("overloaded"),
    refused("overloaded", retry_after_s=1.0),
    refused("upstream_failed"),
    refused("first_byte_timeout"),
    refused("residency"),
    refused("requests_limit"),
    refused("bad_request"),
    (Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), failed("replica_lost")),
    (Accepted("t", "r"), Head(max_tokens=9), Tail("success")),
    (),
)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.3, 5.0, 31.0]),
        st.booleans(),
        st.sampled_from([None, "s1", "s2"]),
        st.lists(st.sampled_from(SCRIPTS), min_size=1, max_size=4),
    ),
    max_size=25,
)


def fleet(regions: int, busy: int) -> Snapshot:
    """``regions`` of rising price; the first ``busy`` have a long queue."""
    made = two_regions()
    own, other = made.targets[0], made.targets[2]
    targets: list[Target] = []
    for i in range(regions):
        load = Load(queue_wait_p95_ms=900.0 if i < busy else 1.0, waiting=0, running=1)
        base = own if i == 0 else replace(other, region=f"cloud-{i}", cloud=f"cloud-{i}")
        targets.append(replace(base, gpu_hour_usd=1.0 + i, load=load, health="healthy"))
    return replace(made, targets=tuple(targets))


@given(st.integers(1, 4), st.integers(0, 4), REQUESTS)
def test_the_promises_of_the_path_over_regions(
    regions: int, busy: int, requests: list[tuple[float, bool, str | None, list[tuple[Step, ...]]]]
) -> None:
    stage = Stage(snapshot=fleet(regions, busy))
    assert stage.snapshot is not None
    calls = stage.agents.calls

    async def one(stream: bool, session: str | None) -> None:
        headers = {**BEARER, **({"x-session-id": session} if session else {})}
        answer = await stage.run(json.dumps({**HELLO, "stream": stream}).encode(), headers)
        if isinstance(answer.body, bytes):
            return
        async for _ in answer.body:
            continue

    for number, (later_s, stream, session, scripts) in enumerate(requests):
        stage.clock.time_s += later_s
        open_before = stage.breakers.all_blocked(stage.clock.time_s)
        first = len(calls)
        stage.agents.scripts[:] = [GOOD] * first + scripts
        asyncio.run(one(stream, session))
        made = calls[first:]
        record = stage.journal.records[-1]
        assert len(stage.journal.records) == number + 1
        assert len(made) <= MAX_ATTEMPTS
        assert not made or made[0][0].id not in open_before
        assert all((call.origin is not None) == (target.region != "cloud-a") for target, call in made)
        assert all(call.origin is None or call.origin.hops == 1 for _, call in made)
        assert record.status in (200, 400, 403, 429, 502, 503, 504)
        if record.status == 200:
            assert record.hops == (record.serving_region != "cloud-a")
            assert record.serving_region == made[-1][0].region
        assert stage.agents.closed == len(calls)
        known = stage.targets.known(stage.snapshot, stage.clock.time_s)
        assert all(n == 0 for n in known.in_flight.values())
