"""What Schemathesis loads before it fuzzes a region: random values alone would rarely get as far as the engine."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

MAX_TOKENS = 4


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Short answers, no limits of 1 ms (a 504 by right); and what is meant to be good is good as a whole."""
    body = case.body if isinstance(case.body, dict) else None
    for name in [n for n in case.headers or {} if n.lower().endswith("-timeout")]:
        del case.headers[name]
    if body is not None:
        shorten(body)
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    for name in [n for n in case.headers or {} if n.lower().startswith("x-")]:
        del case.headers[name]
    if body is not None:
        agree(body)


def shorten(body: dict[str, Any]) -> None:
    """A cap is what costs time here; one that is no number stays wrong."""
    caps = [n for n in ("max_tokens", "max_completion_tokens") if body.get(n) is not None]
    for name in caps:
        if isinstance(body[name], int):
            body[name] = min(body[name], MAX_TOKENS)
    if not caps:
        body["max_tokens"] = MAX_TOKENS


def agree(body: dict[str, Any]) -> None:
    """Names that exist, and fields that need one another together."""
    if "model" in body:
        body["model"] = "auto"
    if "metadata" in body:
        body["metadata"] = {"session_id": "fuzz"}
    if body.get("stream_options") is not None:
        body["stream"] = True
    if body.get("top_logprobs"):
        body["logprobs"] = True
    if body.get("min_tokens"):
        body["min_tokens"] = min(body["min_tokens"], 1)
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and body.get("tools"):
        choice["function"]["name"] = body["tools"][0]["function"]["name"]
    elif choice is not None and not body.get("tools"):
        body["tool_choice"] = "none"
