"""Streams in any pieces and with any fault: bytes arrive as they were, and every call is closed."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve_app.ports import Accepted, Body, Head, Tail, Usage
from tests.fakes import HELLO, Stage, Step

TEXTS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6)
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])
GOOD_END: tuple[Step, ...] = (Tail("success", "stop", Usage(7, 3), 1.5, 4.5),)
FAULTS: tuple[tuple[Step, ...], ...] = (
    (),
    (Head(),),
    (Body(b'data: {"error":{"message":"no"}}\n\n'), *GOOD_END),
)


def event(text: str, end: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode("utf-8", "replace") + end.encode()


async def served(stage: Stage, stream: bool = True) -> tuple[int, bytes]:
    raw = json.dumps({**HELLO, "stream": stream}).encode()
    answer = await stage.run(raw)
    if isinstance(answer.body, bytes):
        return answer.status, answer.body
    return answer.status, b"".join([data async for data in answer.body])


@given(TEXTS, ENDS, st.lists(st.integers(0, 2000), max_size=12))
def test_str_11_any_pieces_of_a_stream_are_the_same_bytes(texts: list[str], end: str, cuts: list[int]) -> None:
    whole = b"".join(event(text, end) for text in texts) + b"data: [DONE]" + end.encode()
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    pieces = [Body(whole[a:b]) for a, b in pairwise(places)]
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), *pieces, *GOOD_END)])
    assert asyncio.run(served(stage)) == (200, whole)
    assert (stage.agents.closed, len(stage.agents.calls)) == (1, 1)
    assert [r.outcome for r in stage.journal.records] == ["success"]


@given(st.lists(st.text(max_size=8), max_size=4), st.sampled_from(FAULTS))
def test_str_01_any_cut_is_one_error_and_no_done(texts: list[str], fault: tuple[Step, ...]) -> None:
    said = [Body(event(text, "\n\n")) for text in texts]
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), *said, *fault)])
    status, body = asyncio.run(served(stage))
    assert stage.agents.closed == len(stage.agents.calls)
    assert [r.outcome for r in stage.journal.records] == ["failed"]
    assert b"[DONE]" not in body and body.count(b'"error"') == 1
    if any(texts):
        assert status == 200 and len(stage.agents.calls) == 1
        assert body.startswith(b"".join(s.data for s in said)) and body.endswith(b"\n\n")
    else:
        assert status == 502 and set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
