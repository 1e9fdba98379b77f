"""From the bytes of an OpenAI request to a checked one: what is honoured, refused, or ignored on purpose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.language import last_user_text
from serve_app.outcomes import GrixError
from serve_app.ports import Kind

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_NESTING: Final = 64
MAX_CHOICES: Final = 16
MAX_LOGIT_BIAS: Final = 300
MAX_STOPS: Final = 16

#: Fields that belong to Grix or to OpenAI's own platform: read or dropped here, never sent to an engine.
IGNORED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "priority", "safety_identifier", "prompt_cache_key"}
    | {"prompt_cache_retention", "reasoning_effort", "verbosity", "prediction"}
)
_SHARED: Final = frozenset(
    {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "n", "stop", "seed"}
    | {"presence_penalty", "frequency_penalty", "logit_bias", "response_format", "logprobs", "top_k", "min_p"}
    | {"repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens"}
)
_CHAT: Final = {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"}
#: Fields an engine may see, by kind. Everything else is refused: engine-only extras are not part of the API.
HONOURED: Final[dict[Kind, frozenset[str]]] = {
    "chat": _SHARED | _CHAT | {"modalities"},
    "completion": _SHARED | {"prompt", "echo", "suffix"},
}
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


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

    @property
    def last_text(self) -> str:
        """What tells the language: the last user turn, or a completion's prompt when it is text."""
        if self.kind == "chat":
            return last_user_text(self.messages)
        prompt = self.body.get("prompt")
        return prompt if isinstance(prompt, str) else ""


def bad(param: str, message: str) -> GrixError:
    """A 400 that names the field."""
    return GrixError("bad_request", f"{param}: {message}", param=param[:100])


def _shown(value: object) -> str:
    """A caller's value as a message may show it: bounded."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _reject_constant(name: str) -> Any:
    raise bad("body", f"{name} is not JSON; allowed are finite numbers.")


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        GrixError: ``body_too_large`` or ``bad_request``.
    """
    if len(raw) > MAX_BODY_BYTES:
        raise GrixError("body_too_large", f"The body has {len(raw)} bytes; at most {MAX_BODY_BYTES} are allowed.")
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_reject_constant)
    except UnicodeDecodeError as error:
        raise bad("body", f"is not UTF-8: byte {error.start}.") from None
    except RecursionError:
        raise bad("body", f"is nested deeper than {MAX_NESTING}.") from None
    except ValueError as error:
        raise bad("body", f"is not JSON: {str(error)[:120]}.") from None
    if not isinstance(value, dict):
        raise bad("body", f"must be a JSON object, is {type(value).__name__}.")
    return {_clean_text(str(k)): _clean(v, _clean_text(str(k))[:60], 1) for k, v in value.items()}


def _clean_text(text: str) -> str:
    """Text that UTF-8 can carry: a lone surrogate (a string cut inside an emoji) becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _clean(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_NESTING:
        raise bad(path, f"is nested deeper than {MAX_NESTING}.")
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise bad(path, "is too large for a number.")
    if isinstance(value, list):
        return [_clean(v, path, depth + 1) for v in value]
    if isinstance(value, dict):
        return {_clean_text(k): _clean(v, path, depth + 1) for k, v in value.items()}
    return value


def _text_of(content: Any, where: str) -> str:
    """Text of a message: parts joined by a line break, nothing as the empty string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, f"must be a string or a list of text parts, is {type(content).__name__}.")
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "refusal"):
            raise bad(f"{where}[{i}].type", f"is {_shown(kind)}; this service takes 'text' parts only.")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise bad(f"{where}[{i}].text", "must be a string.")
        texts.append(text)
    return "\n".join(texts)


def _message(message: Any, i: int) -> dict[str, Any]:
    where = f"messages[{i}]"
    if not isinstance(message, dict):
        raise bad(where, f"must be an object, is {type(message).__name__}.")
    role = message.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role", f"is {_shown(role)}; allowed: {', '.join(ROLES)}.")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(c, dict) for c in calls)):
        raise bad(f"{where}.tool_calls", "must be a list of objects.")
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


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise bad("messages", f"must be a list, is {type(value).__name__}.")
    if not value:
        raise bad("messages", "must hold at least one message.")
    return [_message(m, i) for i, m in enumerate(value)]


def _prompt(value: Any) -> Any:
    """A completion prompt: a string, a list of strings of length 1, or one list of token ids."""
    if isinstance(value, str):
        if not value:
            raise bad("prompt", "must not be empty.")
        return value
    if isinstance(value, list) and value:
        if len(value) == 1 and isinstance(value[0], str):
            return _prompt(value[0])
        if all(type(v) is int and v >= 0 for v in value):
            return value
        if all(isinstance(v, str) for v in value):
            raise bad("prompt", f"holds {len(value)} prompts; send one prompt a request.")
    raise bad("prompt", "must be a string or a list of token ids.")


def _number(low: float, high: float, *, integer: bool = False) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        right = type(value) is int or (type(value) is float and not integer)
        if not right or not low <= value <= high:
            return f"is {_shown(value)}; allowed is {'a whole number' if integer else 'a number'} {low:g} to {high:g}."
        return None

    return check


def _is(kind: type, said: str) -> Callable[[Any], str | None]:
    return lambda value: None if isinstance(value, kind) else f"is {_shown(value)}; allowed is {said}."


def _stop(value: Any) -> str | None:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(s, str) and s for s in items) or len(items) > MAX_STOPS:
        return f"must be a string or a list of at most {MAX_STOPS} non-empty strings."
    return None


def _logit_bias(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of token id to bias."
    if len(value) > MAX_LOGIT_BIAS:
        return f"has {len(value)} entries; at most {MAX_LOGIT_BIAS} are allowed."
    in_range = _number(-100, 100)
    if any(not (k.isascii() and k.isdigit()) or in_range(v) for k, v in value.items()):
        return "keys must be token ids and values numbers from -100 to 100."
    return None


def _logprobs(value: Any) -> str | None:
    """``true``/``false`` for chat, 0 to 20 for completions."""
    return None if isinstance(value, bool) else _number(0, 20, integer=True)(value)


_BIG: Final = 2**53
#: One check a field: the fault, or ``None``.
CHECKS: Final[dict[str, Callable[[Any], str | None]]] = {
    "max_tokens": _number(1, _BIG, integer=True),
    "max_completion_tokens": _number(1, _BIG, integer=True),
    "min_tokens": _number(0, _BIG, integer=True),
    "temperature": _number(0, 2),
    "top_p": _number(1e-9, 1),
    "min_p": _number(0, 1),
    "top_k": _number(-1, 10_000, integer=True),
    "repetition_penalty": _number(0.01, 10),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "n": _number(1, MAX_CHOICES, integer=True),
    "seed": _number(-(2**63), 2**63 - 1, integer=True),
    "top_logprobs": _number(0, 20, integer=True),
    "logprobs": _logprobs,
    "stream": _is(bool, "true or false"),
    "echo": _is(bool, "true or false"),
    "ignore_eos": _is(bool, "true or false"),
    "skip_special_tokens": _is(bool, "true or false"),
    "parallel_tool_calls": _is(bool, "true or false"),
    "stream_options": _is(dict, "an object"),
    "response_format": _is(dict, "an object"),
    "tools": _is(list, "a list"),
    "stop": _stop,
    "logit_bias": _logit_bias,
}


def _check_fields(body: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """The honoured fields that are set, each checked. ``null`` means not given."""
    kept = {}
    for name, value in body.items():
        if name in IGNORED:
            continue
        if name not in HONOURED[kind]:
            raise GrixError(
                "unknown_parameter",
                f"Unrecognized request argument supplied: {name[:60]}",
                param=name[:60],
            )
        if value is None:
            continue
        fault = CHECKS[name](value) if name in CHECKS else None
        if fault:
            raise bad(name, fault)
        kept[name] = value
    if "stream_options" in kept and not kept.get("stream"):
        raise bad("stream_options", "is allowed only with stream: true.")
    if kept.pop("modalities", ["text"]) != ["text"]:
        raise bad("modalities", 'allowed is ["text"].')
    return kept


def _own_inputs(body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str | None]:
    """Grix's own inputs: from ``metadata`` or, winning, from headers. Bounded, so that logs stay bounded."""
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise bad("metadata", "must be an object.")
    user = body.get("user")
    if user is not None and not isinstance(user, str):
        raise bad("user", "must be a string.")
    out: dict[str, str | None] = {}
    for name in ("session_id", "user_id", "route_hint", "task_type", "data_class"):
        header = headers.get("x-" + name.replace("_", "-"))
        value = header if header is not None else (metadata or {}).get(name)
        if value is not None and (not isinstance(value, str) or len(value) > 256):
            raise bad(f"metadata.{name}", "must be a string of at most 256 characters.")
        out[name] = value or None
    out["user_id"] = out["user_id"] or (user[:256] if user else None)
    return out


def parse_request(kind: Kind, raw: bytes, headers: Mapping[str, str]) -> ParsedRequest:
    """Checks a request whole before anything is touched. ``headers`` are lower-case.

    Raises:
        GrixError: ``bad_request``, ``unknown_parameter`` or ``body_too_large``, naming the field.
    """
    body = parse_body(raw)
    own = _own_inputs(body, headers)
    kept = _check_fields(body, kind)
    model = kept.pop("model", None)
    if model is not None and (not isinstance(model, str) or len(model) > 200):
        raise bad("model", "must be a string of at most 200 characters.")
    messages: list[dict[str, Any]] = []
    if kind == "chat":
        messages = _messages(kept.pop("messages", None) if "messages" in kept else body.get("messages", []))
    else:
        kept["prompt"] = _prompt(kept.get("prompt"))
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
    )
