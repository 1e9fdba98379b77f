"""The messages of a chat request and the prompt of a completion, checked and brought into one form."""

from __future__ import annotations

import json
from typing import Any, Final

from serve_app.openai_body import MAX_NESTING
from serve_app.openai_rules import TOOL_CALL, bad, kind_of, shown

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")

#: More turns than this fit no context window; each costs every layer below some work.
MAX_MESSAGES: Final = 10_000


def _text_of(content: Any, where: str) -> str:
    """Text of a message: parts joined by a line break, nothing as the empty string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, f"must be a string or a list of text parts, is {kind_of(content)}.")
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "refusal"):
            raise bad(f"{where}[{i}].type", f"is {shown(kind)}; this service takes 'text' parts only.")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise bad(f"{where}[{i}].text", "must be a string.")
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """What an assistant called before. Arguments that are no JSON pass: a model wrote them, and may have been cut."""
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise bad(where, f"must be a list, is {kind_of(calls)}.")
    for i, call in enumerate(calls):
        if fault := TOOL_CALL.fault(call):
            raise bad(f"{where}[{i}]{fault[0]}", fault[1])
        _bounded(call["function"]["arguments"], f"{where}[{i}].function.arguments")
    return calls


def _bounded(arguments: str, where: str) -> None:
    """Arguments that are JSON are as deep as a body may be, and no deeper: the engine parses them again."""
    try:
        deep = _is_deeper(json.loads(arguments), MAX_NESTING)
    except RecursionError:
        deep = True
    except ValueError:
        return
    if deep:
        raise bad(where, f"is nested deeper than {MAX_NESTING}.")


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    return levels == 0 or any(_is_deeper(v, levels - 1) for v in (value.values() if isinstance(value, dict) else value))


def _message(message: Any, i: int) -> dict[str, Any]:
    where = f"messages[{i}]"
    if not isinstance(message, dict):
        raise bad(where, f"must be an object, is {kind_of(message)}.")
    role = message.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role", f"is {shown(role)}; allowed: {', '.join(ROLES)}.")
    calls = _tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    if "content" not in message and not calls and role != "assistant":
        raise bad(f"{where}.content", "is missing.")
    if role == "user" and message.get("content") is None:
        raise bad(f"{where}.content", "must be a string or a list of text parts, is null.")
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None and not isinstance(message[name], str):
            raise bad(f"{where}.{name}", "must be a string.")
    kept = {k: v for k, v in message.items() if k in ("name", "tool_call_id") and v is not None}
    if calls:
        kept["tool_calls"] = calls
    return {"role": role, "content": _text_of(message.get("content"), f"{where}.content"), **kept}


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The messages, each with a role, its text as one string, and nothing that no template reads."""
    if not isinstance(value, list):
        raise bad("messages", f"must be a list, is {kind_of(value)}.")
    if not value:
        raise bad("messages", "must hold at least one message.")
    if len(value) > MAX_MESSAGES:
        raise bad("messages", f"holds {len(value)} messages; at most {MAX_MESSAGES} are allowed.")
    return [_message(m, i) for i, m in enumerate(value)]


def prompt_of(value: Any) -> Any:
    """A completion prompt: a string, a list of strings of length 1, or one list of token ids."""
    if isinstance(value, str):
        if not value:
            raise bad("prompt", "must not be empty.")
        return value
    if isinstance(value, list) and value:
        if len(value) == 1 and isinstance(value[0], str):
            return prompt_of(value[0])
        if all(type(v) is int and 0 <= v < 2**31 for v in value):
            return value
        if all(isinstance(v, str) for v in value):
            raise bad("prompt", f"holds {len(value)} prompts; send one prompt a request.")
    raise bad("prompt", "must be a string or a list of token ids.")
