"""``grix chat``: talk to the running region, and see how each request went."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.cli.client import Client
from serve_app.cli.say import Failed, note, out

_FACTS: Final = ("language", "rule", "agent", "release", "region", "max-tokens", "hops")


@dataclass(frozen=True, slots=True)
class Talk:
    """What a request says besides its text; ``None``: not said."""

    model: str | None = None
    session: str | None = None
    language: str | None = None
    task_type: str | None = None
    max_tokens: int | None = None


def request_of(talk: Talk, messages: list[dict[str, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a chat request."""
    body: dict[str, Any] = {"messages": messages}
    if talk.model is not None:
        body["model"] = talk.model
    if talk.max_tokens is not None:
        body["max_tokens"] = talk.max_tokens
    if talk.task_type is not None:
        body["metadata"] = {"task_type": talk.task_type}
    headers = {"x-session-id": talk.session, "x-language": talk.language}
    return body, {name: value for name, value in headers.items() if value is not None}


def facts(headers: Mapping[str, str], usage: Mapping[str, Any] | None, finish: str | None) -> str:
    """One line about an answer: the ``x-grix-*`` headers, tokens, how it ended."""
    told = [f"{name} {headers[f'x-grix-{name}']}" for name in _FACTS if f"x-grix-{name}" in headers]
    if usage:
        told.append(f"tokens {usage.get('prompt_tokens')}+{usage.get('completion_tokens')}")
    told += [f"finish {finish}", f"request {headers.get('x-request-id')}"]
    return " · ".join(told)


def answer(client: Client, talk: Talk, messages: list[dict[str, str]], *, stream: bool) -> str:
    """Asks, prints the answer as it comes and the facts after it; returns the answer's text.

    Raises:
        Failed: for an error answer.
    """
    body, headers = request_of(talk, messages)
    if not stream:
        reply = client.ask("POST", "/v1/chat/completions", body, headers)
        if reply.status != 200:
            raise Failed(reply.fault)
        choice = reply.body["choices"][0]
        text = choice["message"].get("content") or ""
        out(text)
        note(facts(reply.headers, reply.body.get("usage"), choice.get("finish_reason")))
        return text
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    reply, events = client.stream("/v1/chat/completions", body, headers)
    if reply.status != 200:
        raise Failed(reply.fault)
    text, usage, finish = "", None, None
    try:
        for event in events:
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                piece = choice.get("delta", {}).get("content") or ""
                finish = choice.get("finish_reason") or finish
                text += piece
                sys.stdout.buffer.write(piece.encode("utf-8", "replace"))
                sys.stdout.buffer.flush()
    finally:
        out()
    note(facts(reply.headers, usage, finish))
    return text


def interactive(client: Client, talk: Talk, *, stream: bool) -> None:
    """A conversation until end of input; an error answer ends a turn, not the conversation."""
    messages: list[dict[str, str]] = []
    note("Write a question; end with Ctrl-D.")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not line:
            continue
        turn = [*messages, {"role": "user", "content": line}]
        try:
            said = answer(client, talk, turn, stream=stream)
        except Failed as error:
            note(str(error))
            continue
        messages = [*turn, {"role": "assistant", "content": said}]
