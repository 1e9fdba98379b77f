"""What an answer says before any byte of it has gone to the client: tokens, an error, or nothing yet.

A worker may answer 200 and put its error into the first event, or end without a word. Until something was said the
request can still be given to another worker, and the client can still have a true status.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from serve_app.outcomes import Reason

#: A first event larger than this is an answer, whatever it holds: it is not kept back any longer.
MOST_HELD_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(rb"\r\n|\n|\r")
#: An event ends with an empty line; the three line ends of the standard may be mixed.
EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
#: Inside a string the quotes would be escaped, so this is a key.
_ERROR_KEY: Final = re.compile(rb'"error"\s*:')
#: A worker's status to our reason; what is not here is the worker's own trouble, not the caller's.
_REASONS: Final[dict[int, Reason]] = {
    400: "bad_request",
    404: "bad_request",
    413: "bad_request",
    422: "bad_request",
    429: "overloaded",
    503: "overloaded",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an answer is none."""

    reason: Reason
    message: str


Opening = Literal["wait", "good"] | Fault


def judge_opening(held: bytes) -> Opening:
    """The first bytes of a stream: ``good`` once an event says something, ``wait`` before, else the fault."""
    start = 0
    for end in EVENT_END.finditer(held):
        verdict = _judge_event(held[start : end.start()])
        if verdict != "wait":
            return verdict
        start = end.end()
    return "good" if len(held) >= MOST_HELD_BYTES else "wait"


def judge_end(held: bytes) -> Fault | None:
    """A stream that ended well while its opening still said ``wait``: nothing was said at all."""
    if held and not EVENT_END.search(held):
        return Fault("upstream_invalid", "The engine broke off inside its first event.")
    return Fault("upstream_invalid", "The engine ended the answer without saying anything.")


def judge_whole(body: bytes) -> Fault | None:
    """A whole JSON answer. Parsed only where it looks wrong: answers may be large."""
    text = body.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return Fault("upstream_invalid", "The engine's answer is not a JSON object.")
    if not (_NO_CHOICES.search(text) or _ERROR_KEY.search(text)):
        return None
    value = parsed(text)
    if not isinstance(value, dict):
        return Fault("upstream_invalid", "The engine's answer is not a JSON object.")
    if value.get("error"):
        return _fault_of(value["error"])
    if value.get("choices") == []:
        return Fault("upstream_invalid", "The engine answered without choices.")
    return None


def find_error(data: bytes) -> tuple[int, Fault] | None:
    """Where in whole events an error event begins, and what it says. Content that only speaks of errors is none."""
    if not _ERROR_KEY.search(data):
        return None
    start = 0
    for end in EVENT_END.finditer(data):
        event = data[start : end.start()]
        value = parsed(payload(event)) if _ERROR_KEY.search(event) else None
        if isinstance(value, dict) and value.get("error"):
            return start, _fault_of(value["error"])
        start = end.end()
    return None


def payload(event: bytes) -> bytes:
    """The data of an event; the space after the colon is optional."""
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines)


def parsed(text: bytes) -> Any:
    """The JSON value, or ``None`` for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _judge_event(event: bytes) -> Opening:
    text = payload(event).strip()
    if not text:  # a comment that keeps the connection open
        return "wait"
    if text == b"[DONE]":
        return Fault("upstream_invalid", "The engine ended the answer without saying anything.")
    value = parsed(text)
    if value is None:
        return Fault("upstream_invalid", "The engine's first event is not JSON.")
    if not isinstance(value, dict):
        return "good"
    if value.get("error"):
        return _fault_of(value["error"])
    choices = value.get("choices")
    if isinstance(choices, list) and all(isinstance(c, dict) and _is_silent(c) for c in choices):
        return "wait"
    return "good"


def _is_silent(choice: dict[str, Any]) -> bool:
    """Only a role, or nothing: neither text nor a tool call nor an end."""
    if choice.get("finish_reason") is not None or choice.get("text"):
        return False
    delta = choice.get("delta")
    return not any(value for key, value in delta.items() if key != "role") if isinstance(delta, dict) else not delta


def _fault_of(error: Any) -> Fault:
    """A worker's own words, one bounded line of them: never a trace."""
    code, told = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    status = int(code) if isinstance(code, int | str) and str(code).isascii() and str(code).isdigit() else 500
    lines = str(told or "").strip().splitlines()
    return Fault(_REASONS.get(status, "upstream_failed"), lines[0][:200] if lines else "The engine broke off.")
