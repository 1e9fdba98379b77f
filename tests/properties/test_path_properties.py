"""Whatever a client sends, the path answers with a status it means, one record, and a closed call."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core import prompting
from serve_app.core.retry import RetryBudget
from serve_app.openai_request import HONOURED, parse_body
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, Body, Head
from tests.fakes import BEARER, HELLO, STREAMED, Stage, failed, refused, two_regions

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "robot"]) | JSON
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": ROLES, "content": JSON, "tool_calls": JSON}), max_size=4
)
FIELDS = st.dictionaries(st.sampled_from(sorted(HONOURED["chat"] - {"stream", "messages"})), JSON, max_size=3)
SYSTEM = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()})


def answered(stage: Stage, raw: bytes) -> int:
    """The status of one request, its body read to the end."""

    async def ask() -> int:
        answer = await stage.run(raw)
        if not isinstance(answer.body, bytes):
            async for _ in answer.body:
                continue
        elif answer.status != 200:
            told = json.loads(answer.body)["error"]
            assert set(told) == {"message", "type", "param", "code"}
        return answer.status

    return asyncio.run(ask())


@given(FIELDS, MESSAGES | JSON)
def test_no_json_makes_a_500(fields: dict[str, Any], messages: Any) -> None:
    stage = Stage()
    status = answered(stage, json.dumps({**fields, "messages": messages}).encode())
    assert status in (200, 400, 404)
    assert len(stage.journal.records) == 1
    assert len(stage.agents.calls) == (1 if status == 200 else 0)
    assert stage.agents.closed == len(stage.agents.calls)


@given(st.binary(max_size=200))
def test_no_bytes_make_a_500(raw: bytes) -> None:
    stage = Stage()
    assert answered(stage, raw) == 400
    assert (stage.agents.calls, stage.detector.texts) == ([], [])


@given(st.dictionaries(st.text(alphabet=st.characters(), max_size=6), JSON, max_size=4))
def test_a_parsed_body_is_always_utf_8(body: dict[str, Any]) -> None:
    try:
        parsed = parse_body(json.dumps(body).encode())
    except GrixError as error:
        assert error.message.endswith(": is too large for a whole number.")
        assert max(abs(int(n)) for n in re.findall(r"\d+", json.dumps(body))) >= 2**63
        return
    json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    clean = all(not 0xD800 <= ord(c) <= 0xDFFF for key in body for c in key)
    if clean:
        assert set(parsed) == set(body)


ENDS = st.sampled_from(
    ["upstream_failed", "upstream_invalid", "no_target", "overloaded", "queue_timeout", "context_length", "internal"]
)


@given(st.lists(ENDS, max_size=4), st.floats(0.0, 10.0), st.booleans())
def test_attempts_are_at_most_three_within_the_budget_and_all_closed(
    ends: list[str], saved: float, stream: bool
) -> None:
    budget = RetryBudget(saved=saved)
    stage = Stage(scripts=[*(refused(r) for r in ends), STREAMED], snapshot=two_regions(), budget=budget)
    answered(stage, json.dumps({**HELLO, "stream": stream}).encode())
    tried = len(stage.agents.calls)
    (record,) = stage.journal.records
    assert 1 <= tried <= 3
    # A move away from who is not there is free.
    assert tried - 1 <= saved + 0.2 + (ends[:1] == ["no_target"])
    assert stage.agents.closed == tried == len(record.attempts)
    assert sum(stage.clock.slept_s) <= 2.0
    assert (record.outcome == "success") == (record.error is None)


@given(st.integers(1, 5), ENDS)
def test_a_stream_that_breaks_keeps_its_bytes_and_tells_the_end_once(whole: int, reason: str) -> None:
    bodies = [Body(b"data: %d\n\n" % i) for i in range(whole)]
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), *bodies, failed(reason))])

    async def ask() -> list[bytes]:
        answer = await stage.run(json.dumps({**HELLO, "stream": True}).encode(), BEARER)
        assert not isinstance(answer.body, bytes)
        return [data async for data in answer.body]

    got = asyncio.run(ask())
    assert got[:whole] == [b.data for b in bodies]
    assert len(got) == whole + 1 and b"[DONE]" not in b"".join(got)
    assert "error" in json.loads(got[-1].removeprefix(b"data: "))
    assert (len(stage.agents.calls), len(stage.journal.records), stage.journal.records[0].error) == (1, 1, reason)


@given(st.lists(SYSTEM, max_size=6), st.text(min_size=1))
def test_merging_loses_no_text_and_no_order(own: list[dict[str, Any]], system: str) -> None:
    merged = prompting.merge_system(own, system)
    assert merged[0]["role"] == "system" and merged[0]["content"].startswith(system)
    rest = merged if own and own[0]["role"] == "system" else merged[1:]
    assert len(rest) == len(own)
    for mine, sent in zip(own, rest, strict=True):
        assert sent["content"].endswith(mine["content"])
        assert sent["role"] == mine["role"]


@given(st.integers(65, 2000))
def test_nesting_beyond_the_limit_is_always_a_400(depth: int) -> None:
    with pytest.raises(GrixError) as caught:
        parse_body(b'{"tools":' + b"[" * depth + b"]" * depth + b"}")
    assert (caught.value.reason, caught.value.status.http) == ("bad_request", 400)
