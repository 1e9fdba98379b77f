"""The assistant's words out of the bytes of answers: streams in any pieces, whole documents, and what is neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.core.answers import WHOLE_BYTES, Listener, text_of_whole
from serve_app.core.openings import MOST_HELD_BYTES
from serve_app.core.sessions import TEXT_BYTES


def event(**delta: Any) -> bytes:
    index = delta.pop("index", 0)
    return b"data: " + json.dumps({"choices": [{"index": index, "delta": delta}]}).encode() + b"\n\n"


STREAM = b"".join(
    [
        b": a comment\n\n",
        event(role="assistant", content=""),
        event(content="返品"),
        event(content="other", index=1),
        event(content=None, tool_calls=[]),
        event(content="です 👍"),
        b'data: {"choices":[],"usage":{}}\r\n\r\n',
        b"data: no json\n\n",
        b"data: [DONE]\n\n",
    ]
)


def heard(*parts: bytes) -> tuple[str, bool]:
    listener = Listener()
    for part in parts:
        listener.hear(part)
    return listener.text, listener.done


@pytest.mark.parametrize("size", [1, 7, 64, len(STREAM)])
def test_a_stream_is_heard_in_any_pieces(size: int) -> None:
    assert heard(*(STREAM[i : i + size] for i in range(0, len(STREAM), size))) == ("返品です 👍", True)


def test_a_stream_that_breaks_off_is_not_done() -> None:
    error = b'data: {"error": {"message": "[DONE]"}}\n\n'
    assert heard(event(content="a"), error) == ("a", False)
    assert heard(event(content="data: [DONE]\n\n")) == ("data: [DONE]\n\n", False)


def test_no_more_is_heard_than_a_session_keeps() -> None:
    text, done = heard(*(event(content="x" * 1000) for _ in range(10)), b"data: [DONE]\n\n")
    assert (text, done) == ("x" * (1000 * (TEXT_BYTES // 1000 + 1)), True)


def test_an_event_without_end_is_not_held_without_end() -> None:
    listener = Listener()
    for part in (event(content="a"), *[b"x" * 1000] * 100):
        listener.hear(part)
        assert len(listener._held) <= MOST_HELD_BYTES
    listener.hear(b"\n\n" + event(content="b") + b"data: [DONE]\n\n")
    assert (listener.text, listener.done) == ("ab", True)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"index": 0, "message": {"content": "hello"}}]}, "hello"),
        ({"choices": [{"index": 1, "message": {"content": "b"}}, {"index": 0, "message": {"content": "a"}}]}, "a"),
        ({"choices": [{"message": {"content": "cut \ud83d"}}]}, "cut \ufffd"),
        ({"choices": [{"index": 0, "message": {"content": None, "tool_calls": []}}]}, ""),
        ({"choices": [{"index": 0, "message": "hello"}]}, ""),
        ({"choices": [None]}, ""),
        ({"choices": "x"}, ""),
        ([], ""),
    ],
)
def test_a_whole_answer_says_its_first_choice(body: Any, text: str) -> None:
    assert text_of_whole(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":' * 10_000, b" " * (WHOLE_BYTES + 1)])
def test_what_is_no_answer_says_nothing(body: bytes) -> None:
    assert text_of_whole(body) == ""
