"""What a value of a request field may be: each rule is a check and the JSON schema that says the same to a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.json_schemas import CHARS_A_MEMBER, endless_reference, repeats_too_often, size_of
from serve_app.outcomes import GrixError

MAX_STOPS: Final = 16
MAX_STOP_TOKEN_IDS: Final = 64
MAX_LOGIT_BIAS: Final = 300
MAX_TOOLS: Final = 128
#: Of one schema, and of those of all tools of a request; see :func:`serve_app.core.json_schemas.size_of`.
MAX_SCHEMA_SIZE: Final = 2_000
MAX_TOOLS_SIZE: Final = 10_000

#: A fault: the path below the field (empty for the field itself) and what is wrong with it; ``None``: no fault.
Fault = tuple[str, str] | None
Schema = dict[str, Any]

#: OpenAI's own form of function and schema names.
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME_SCHEMA: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_NAME_SAID: Final = "allowed are 1 to 64 letters, digits, _ and -."


@dataclass(frozen=True, slots=True)
class Rule:
    """A check of one value, and its JSON schema. The check decides; the schema may be wider, never narrower."""

    fault: Callable[[Any], Fault]
    schema: Schema


def bad(param: str, message: str) -> GrixError:
    """A 400 that names the field."""
    return GrixError("bad_request", f"{param}: {message}", param=param[:100])


def shown(value: object) -> str:
    """A caller's value as a message may show it: bounded."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


_KINDS: Final = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def kind_of(value: object) -> str:
    """What a caller's value is, in the words of JSON."""
    return _KINDS.get(type(value), "a number")


def number(low: float, high: float, *, integer: bool = False) -> Rule:
    """A number in bounds; ``true`` is none."""

    def fault(value: Any) -> Fault:
        right = type(value) is int or (type(value) is float and not integer)
        if not right or not low <= value <= high:
            kind = "a whole number" if integer else "a number"
            return "", f"is {shown(value)}; allowed is {kind} {low} to {high}."
        return None

    return Rule(fault, {"type": "integer" if integer else "number", "minimum": low, "maximum": high})


def text(max_length: int) -> Rule:
    """A bounded string."""

    def fault(value: Any) -> Fault:
        if not isinstance(value, str) or len(value) > max_length:
            return "", f"must be a string of at most {max_length} characters."
        return None

    return Rule(fault, {"type": "string", "maxLength": max_length})


def one_of(*allowed: str) -> Rule:
    """One of some words."""

    def fault(value: Any) -> Fault:
        return None if value in allowed else ("", f"is {shown(value)}; allowed: {', '.join(allowed)}.")

    return Rule(fault, {"enum": list(allowed)})


def _boolean(value: Any) -> Fault:
    return None if isinstance(value, bool) else ("", f"is {shown(value)}; allowed is true or false.")


BOOLEAN: Final = Rule(_boolean, {"type": "boolean"})


def _object(value: Any) -> Fault:
    return None if isinstance(value, dict) else ("", "must be an object.")


OBJECT: Final = Rule(_object, {"type": "object"})


def members(
    value: dict[str, Any], rules: dict[str, Rule], required: tuple[str, ...] = (), *, closed: bool = False
) -> Fault:
    """The first fault among an object's members. ``null`` is absent; ``closed``: no other members."""
    for name, member in value.items():
        if name not in rules:
            if closed:
                return f".{name[:40]}", f"is not known; allowed: {', '.join(rules)}."
        elif member is not None and (fault := rules[name].fault(member)):
            return f".{name}{fault[0]}", fault[1]
    for name in required:
        if value.get(name) is None:
            return f".{name}", "is missing."
    return None


def _members_schema(rules: dict[str, Rule], required: tuple[str, ...] = (), *, closed: bool = False) -> Schema:
    schema: Schema = {"type": "object", "properties": {name: rule.schema for name, rule in rules.items()}}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


def _stop(value: Any) -> Fault:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(s, str) and s for s in items) or len(items) > MAX_STOPS:
        return "", f"must be a string or a list of at most {MAX_STOPS} non-empty strings."
    return None


_WORD: Final[Schema] = {"type": "string", "minLength": 1}
STOP: Final = Rule(_stop, {"oneOf": [_WORD, {"type": "array", "items": _WORD, "maxItems": MAX_STOPS}]})


def _stop_token_ids(value: Any) -> Fault:
    # Which ids a model has is the engine's to say; a whole number in 32 bits is safe to ask it.
    right = isinstance(value, list) and all(type(v) is int and 0 <= v < 2**31 for v in value)
    if not right or len(value) > MAX_STOP_TOKEN_IDS:
        return "", f"must be a list of at most {MAX_STOP_TOKEN_IDS} token ids."
    return None


_TOKEN_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
STOP_TOKEN_IDS: Final = Rule(_stop_token_ids, {"type": "array", "items": _TOKEN_ID, "maxItems": MAX_STOP_TOKEN_IDS})


def _logit_bias(value: Any) -> Fault:
    if not isinstance(value, dict):
        return "", "must be an object of token id to bias."
    if len(value) > MAX_LOGIT_BIAS:
        return "", f"has {len(value)} entries; at most {MAX_LOGIT_BIAS} are allowed."
    bias = number(-100, 100).fault
    if any(not (k.isascii() and k.isdigit() and len(k) <= 10) or bias(v) for k, v in value.items()):
        return "", "keys must be token ids and values numbers from -100 to 100."
    return None


LOGIT_BIAS: Final = Rule(
    _logit_bias,
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(-100, 100).schema,
        "maxProperties": MAX_LOGIT_BIAS,
    },
)


def _modalities(value: Any) -> Fault:
    return None if value == ["text"] else ("", 'allowed is ["text"].')


MODALITIES: Final = Rule(_modalities, {"const": ["text"]})

_STREAM_OPTIONS: Final = {"include_usage": BOOLEAN, "continuous_usage_stats": BOOLEAN, "include_obfuscation": BOOLEAN}


def _stream_options(value: Any) -> Fault:
    return _object(value) or members(value, _STREAM_OPTIONS, closed=True)


STREAM_OPTIONS: Final = Rule(_stream_options, _members_schema(_STREAM_OPTIONS, closed=True))


def _name(value: Any) -> Fault:
    right = isinstance(value, str) and NAME.fullmatch(value)
    return None if right else ("", f"is {shown(value)}; {_NAME_SAID}")


_NAME_RULE: Final = Rule(_name, _NAME_SCHEMA)
_ANY_TEXT: Final = text(100_000)


def nested(rules: dict[str, Rule], required: tuple[str, ...], *, closed: bool = False) -> Rule:
    """An object with members of its own."""
    return Rule(
        lambda value: _object(value) or members(value, rules, required, closed=closed),
        _members_schema(rules, required, closed=closed),
    )


def _schema(value: Any) -> Fault:
    if fault := _object(value):
        return fault
    if size := _too_large(size_of(value), MAX_SCHEMA_SIZE):
        return "", size
    if repeats := repeats_too_often([value]):
        return "", repeats
    if (reference := endless_reference(value)) is not None:
        return "", f"has a $ref that only leads back to itself: {shown(reference)}."
    return None


def _too_large(size: int, most: int) -> str | None:
    """What is said of a schema that takes an engine too long."""
    if size <= most:
        return None
    said = f"its members, items and every {CHARS_A_MEMBER} characters of text"
    return f"is too large: {said} come to {size}; allowed is {most}."


SCHEMA: Final = Rule(_schema, OBJECT.schema)
_JSON_SCHEMA: Final = nested(
    {"name": _NAME_RULE, "description": _ANY_TEXT, "schema": SCHEMA, "strict": BOOLEAN}, ("name", "schema")
)
_FORMATS: Final = {"type": one_of("text", "json_object", "json_schema"), "json_schema": _JSON_SCHEMA}


def _response_format(value: Any) -> Fault:
    fault = _object(value) or members(value, _FORMATS, ("type",))
    if fault is None and value["type"] == "json_schema" and value.get("json_schema") is None:
        return ".json_schema", "is missing."
    return fault


FORMAT: Final = Rule(_response_format, _members_schema(_FORMATS, ("type",)))

_FUNCTION: Final = nested(
    {"name": _NAME_RULE, "description": _ANY_TEXT, "parameters": SCHEMA, "strict": BOOLEAN}, ("name",)
)
_TOOL: Final = nested({"type": one_of("function"), "function": _FUNCTION}, ("type", "function"))


def _tools(value: Any) -> Fault:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TOOLS:
        return "", f"must be a list of 1 to {MAX_TOOLS} tools."
    for i, tool in enumerate(value):
        if fault := _TOOL.fault(tool):
            return f"[{i}]{fault[0]}", fault[1]
    schemas = [tool["function"].get("parameters") for tool in value]
    told = _too_large(sum(map(size_of, schemas)), MAX_TOOLS_SIZE)
    told = told or repeats_too_often(schemas, MAX_TOOLS_SIZE // MAX_SCHEMA_SIZE)
    return ("", told) if told else None


TOOLS: Final = Rule(_tools, {"type": "array", "items": _TOOL.schema, "minItems": 1, "maxItems": MAX_TOOLS})

CHOICES: Final = ("none", "auto", "required")
_NAMED: Final = nested(
    {"type": one_of("function"), "function": nested({"name": _NAME_RULE}, ("name",))}, ("type", "function")
)


def _tool_choice(value: Any) -> Fault:
    if isinstance(value, dict):
        return _NAMED.fault(value)
    if value not in CHOICES:
        return "", f"is {shown(value)}; allowed: {', '.join(CHOICES)}, or one function by name."
    return None


TOOL_CHOICE: Final = Rule(_tool_choice, {"oneOf": [{"enum": list(CHOICES)}, _NAMED.schema]})

_CALLED: Final = nested({"name": _ANY_TEXT, "arguments": text(10_000_000)}, ("name", "arguments"))
#: One call in an assistant's message: what the engine said before, so names are not judged again.
TOOL_CALL: Final = nested(
    {"id": _ANY_TEXT, "type": one_of("function"), "function": _CALLED}, ("id", "type", "function")
)
