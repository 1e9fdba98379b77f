"""From the bytes of an OpenAI request to a checked one. What becomes of each field is said in ``openai_fields``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core import budget
from serve_app.core.language import last_user_text
from serve_app.openai_body import MAX_BODY_BYTES, MAX_NESTING, parse_body
from serve_app.openai_fields import BY_KIND, HONOURED
from serve_app.openai_messages import messages_of, prompt_of
from serve_app.openai_rules import bad
from serve_app.outcomes import GrixError
from serve_app.ports import Kind

__all__ = ["HONOURED", "MAX_BODY_BYTES", "MAX_NESTING", "ParsedRequest", "bad", "parse_body", "parse_request"]

#: A member of ``stream_options`` that no engine knows: it pads events against listeners on the wire, TLS's own task.
_PADDING: Final = "include_obfuscation"

#: Larger bodies take milliseconds to parse.
LARGE_BODY_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that may be routed. ``body`` holds only honoured fields, without ``model`` and token limits."""

    kind: Kind
    model: str | None
    body: dict[str, Any]
    messages: list[dict[str, Any]]
    stream: bool
    max_tokens: int | None
    session_id: str | None
    user_id: str | None
    intent: str | None
    data_class: str | None
    route_hint: str | None
    language: str | None
    #: Of all messages' contents, or of the prompt where it is text, in UTF-8.
    text_bytes: int
    #: The conversation is the server's to remember; ``messages`` hold the new turn only.
    history: bool = False

    @property
    def last_text(self) -> str:
        """What tells the language: the last user turn, or a completion's prompt when it is text."""
        if self.kind == "chat":
            return last_user_text(self.messages)
        prompt = self.body.get("prompt")
        return prompt if isinstance(prompt, str) else ""


def _check_fields(body: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """The honoured fields that are set, each checked. ``null`` means not given."""
    kept = {}
    for name, value in body.items():
        field = BY_KIND[kind].get(name)
        if field is None:
            raise GrixError(
                "unknown_parameter",
                f"Unrecognized request argument supplied: {name[:60]}",
                param=name[:60],
            )
        if value is None:
            continue
        if field.use == "refused":
            raise GrixError("unsupported_parameter", f"{name}: is not supported here: {field.note}.", param=name)
        if field.rule is not None and (fault := field.rule.fault(value)):
            raise bad(name + fault[0], fault[1])
        if field.use == "honoured":
            kept[name] = value
    return kept


def _check_together(kept: dict[str, Any]) -> None:
    """Fields that need, or limit, one another."""
    if "stream_options" in kept:
        if not kept.get("stream"):
            raise bad("stream_options", "is allowed only with stream: true.")
        kept["stream_options"] = {k: v for k, v in kept["stream_options"].items() if k != _PADDING}
    if kept.get("top_logprobs") and not kept.get("logprobs"):
        raise bad("top_logprobs", "is allowed only with logprobs: true.")
    cap = kept.get("max_completion_tokens", kept.get("max_tokens"))
    if cap is not None and kept.get("min_tokens", 0) > cap:
        raise bad("min_tokens", f"is {kept['min_tokens']}; allowed is at most the cap, {cap}.")
    choice = kept.get("tool_choice", "none")
    if choice == "none":
        return
    if "tools" not in kept:
        raise bad("tool_choice", "is allowed only with tools.")
    tools = [tool["function"]["name"] for tool in kept["tools"]]
    if isinstance(choice, dict) and choice["function"]["name"] not in tools:
        raise bad("tool_choice.function.name", f"is not one of tools: {', '.join(tools)[:200]}.")


def _own_inputs(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str | None]:
    """Grix's own inputs: from ``metadata`` or, winning, from headers. Bounded, so that logs stay bounded."""
    metadata, user = body.get("metadata"), body.get("user")
    out: dict[str, str | None] = {}
    for name in ("session_id", "user_id", "route_hint", "task_type", "data_class"):
        header = "x-" + name.replace("_", "-")
        value = headers.get(header, (metadata or {}).get(name))
        if value is not None and (not isinstance(value, str) or len(value) > 256):
            where = header if header in headers else f"metadata.{name}"
            raise bad(where, "must be a string of at most 256 characters.")
        out[name] = value or None
    out["user_id"] = out["user_id"] or (user[:256] if user else None)
    return out


def _wants_history(
    kind: Kind, body: Mapping[str, Any], headers: Mapping[str, str], session_id: str | None, kept: Mapping[str, Any]
) -> bool:
    """Whether the conversation is the server's to remember: ``metadata.history`` or ``x-grix-history``, which wins."""
    name, value = "metadata.history", (body.get("metadata") or {}).get("history")
    if "x-grix-history" in headers:
        name, value = "x-grix-history", headers["x-grix-history"]
    if value in (None, ""):
        return False
    if value != "server":
        raise bad(name, "allowed is server, or nothing.")
    if kind != "chat":
        raise bad(name, "is allowed with chat completions only.")
    if session_id is None:
        raise bad("metadata.session_id", f"is needed with {name}: server.")
    if "tools" in kept:
        raise bad("tools", f"is not allowed with {name}: server; send the whole conversation instead.")
    return True


def _check_new_turn(messages: Sequence[Mapping[str, Any]]) -> None:
    """With server-side history the caller's messages are the new turn: what the server has would come twice."""
    *before, last = messages
    if last["role"] != "user" or any(m["role"] not in ("system", "developer") for m in before):
        raise bad("messages", "must be one user message, after system messages if any, as the history is the server's.")


async def parse_apart(kind: Kind, raw: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """:func:`parse_request`; a large body in a thread, so that streams of others go on meanwhile."""
    if len(raw) <= LARGE_BODY_BYTES:
        return parse_request(kind, raw, headers)
    return await asyncio.to_thread(parse_request, kind, raw, headers)


def parse_request(kind: Kind, raw: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """Checks a request whole before anything is touched. ``headers`` are lower-case.

    Raises:
        GrixError: ``bad_request``, ``unknown_parameter``, ``unsupported_parameter`` or ``body_too_large``, naming the
            field.
    """
    body = parse_body(raw)
    kept = _check_fields(body, kind)
    own = _own_inputs(body, headers)
    _check_together(kept)
    history = _wants_history(kind, body, headers, own["session_id"], kept)
    model = kept.pop("model", None)
    messages: list[dict[str, Any]] = []
    if kind == "chat":
        messages = messages_of(kept.pop("messages", None) if "messages" in kept else body.get("messages", []))
        if history:
            _check_new_turn(messages)
    else:
        kept["prompt"] = prompt_of(kept.get("prompt"))
    limit = kept.pop("max_tokens", None)
    limit = kept.pop("max_completion_tokens", limit)
    stream = bool(kept.pop("stream", False))
    return ParsedRequest(
        kind=kind,
        model=model,
        body=kept,
        messages=messages,
        stream=stream,
        max_tokens=limit,
        session_id=own["session_id"],
        user_id=own["user_id"],
        intent=own["task_type"],
        data_class=own["data_class"],
        route_hint=own["route_hint"],
        language=headers.get("x-language") or None,
        text_bytes=budget.messages_bytes(messages or [{"content": kept.get("prompt")}]),
        history=history,
    )
