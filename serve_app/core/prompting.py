"""The prompt as the engine gets it: template and caller's system message joined, special tokens made inert.

Who writes a special token writes turns: ``<|im_end|>`` in a user's text would end the user's turn, and
``<|im_start|>system`` would speak with the operator's voice. A template joins strings and the tokenizer cannot tell
whose they are, so the tokens are broken in everything the caller sends before the template sees it. A completion's
``prompt`` is not touched: it is the whole prompt, the caller's own, with no voice in it but the caller's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

#: Put inside a special token's text, it keeps the text readable and the tokenizer from seeing the token.
_BREAK: Final = "\u200b"
#: Fields of a chat request that reach the template, ``tool_choice`` because its name must match a tool's. ``stop`` and
#: ``response_format`` do not: they are compared with what the model says.
_RENDERED: Final = ("messages", "tools", "tool_choice")
#: A body's own nesting is bounded when it is parsed; arguments are JSON inside a string, bounded here.
MAX_NESTING: Final = 64
#: Of a JSON value; see :func:`is_large`.
LARGE_MEMBERS: Final = 1_000
LARGE_CHARS: Final = 256 * 1024
_TOO_DEEP: Final = f"tool_calls: arguments are nested deeper than {MAX_NESTING}."

Message = dict[str, Any]


def merge_system(messages: Sequence[Mapping[str, Any]], system: str | None) -> list[Message]:
    """Messages with the template's system text first; a system text the caller begins with joins it in one message.

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


def is_large(value: Any) -> bool:
    """Whether to touch every text in a JSON value takes milliseconds, for its many members or characters.

    It looks no further than it has to, so that this is told in a fraction of one.
    """
    members, chars, todo = 0, 0, [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            chars += len(one)
        elif isinstance(one, dict | list):
            members += len(one)
            if members > LARGE_MEMBERS:
                return True
            todo.extend(one.values() if isinstance(one, dict) else one)
    return chars > LARGE_CHARS


@lru_cache(maxsize=16)
def _starts(special_tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Matches the first character of every place where a token begins, also inside another: nothing is stepped over.

    Runs of white space, which some tokenizers list as tokens, are left alone: they speak for nobody.
    """
    rests: dict[str, list[str]] = {}
    for token in special_tokens:
        if len(token) > 1 and not token.isspace():
            rests.setdefault(token[0], []).append(re.escape(token[1:]))
    places = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(places) or r"(?!)")


def make_inert(text: str, special_tokens: Sequence[str]) -> str:
    """Text in which no special token of the tokenizer occurs: ``<|im_end|>`` from a user is text, not a turn's end."""
    return _starts(tuple(special_tokens)).sub(rf"\g<0>{_BREAK}", text)


def inert_chat(body: Mapping[str, Any], special_tokens: Sequence[str]) -> dict[str, Any]:
    """A chat request whose every text that reaches the prompt has been through :func:`make_inert`.

    Names of tools change alike wherever they stand, so a choice or an answer still finds its tool.

    Raises:
        ValueError: for a tool call's arguments nested deeper than :data:`MAX_NESTING`.
    """
    tokens = tuple(special_tokens)
    made = {name: _inert(body[name], tokens, MAX_NESTING) for name in _RENDERED if body.get(name) is not None}
    for message in made.get("messages", ()):
        for call in message.get("tool_calls") or ():
            _inert_arguments(call.get("function"), tokens)
    return {**body, **made}


def _inert(value: Any, tokens: tuple[str, ...], levels: int) -> Any:
    """A copy with every string in it made inert, keys too: a template prints schemas and arguments whole."""
    if isinstance(value, str):
        return make_inert(value, tokens)
    if not isinstance(value, Mapping | list):
        return value
    if levels == 0:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, Mapping):
        return {make_inert(k, tokens): _inert(v, tokens, levels - 1) for k, v in value.items()}
    return [_inert(v, tokens, levels - 1) for v in value]


def _inert_arguments(function: Any, tokens: tuple[str, ...]) -> None:
    """Makes inert what JSON escapes hide: ``\\u003c|im_end|>`` in arguments is a token once the engine reads them."""
    text = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(text, str):
        return
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except json.JSONDecodeError:
        return  # the engine shows the model empty arguments instead
    made = _inert(value, tokens, MAX_NESTING)
    if made != value:
        function["arguments"] = json.dumps(made, ensure_ascii=False)
