"""The prompt as the engine gets it: template and caller's system message joined, special tokens made inert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Put inside a special token's text, it keeps the text readable and the tokenizer from seeing the token.
_BREAK: Final = "\u200b"

Message = dict[str, Any]


def merge_system(messages: Sequence[Mapping[str, Any]], system: str | None) -> list[Message]:
    """Messages with the template's system text first and all of the caller's system texts after it, in one message.

    Later system messages stay where they are: moving them would change what they refer to.
    """
    out = [dict(m) for m in messages]
    if not system:
        return out
    if out and out[0].get("role") in ("system", "developer"):
        own = out[0].get("content") or ""
        out[0] = {**out[0], "role": "system", "content": f"{system}\n\n{own}" if own else system}
        return out
    return [{"role": "system", "content": system}, *out]


def make_inert(text: str, special_tokens: Sequence[str]) -> str:
    """Text in which no special token of the tokenizer occurs: ``<|im_end|>`` from a user is text, not a turn's end."""
    if "<" not in text and "[" not in text:
        return text
    for token in special_tokens:
        if len(token) > 1 and token in text:
            text = text.replace(token, token[0] + _BREAK + token[1:])
    return text


def inert_messages(messages: Sequence[Mapping[str, Any]], special_tokens: Sequence[str]) -> list[Message]:
    """Messages with :func:`make_inert` applied to every text a caller can write into."""
    out = []
    for message in messages:
        copy = dict(message)
        content = copy.get("content")
        if isinstance(content, str):
            copy["content"] = make_inert(content, special_tokens)
        out.append(copy)
    return out
