"""Type errors as faults: what is wrong with a value, and what is allowed there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from cluster_configs.faults import Path, listed, nearest, shown
from cluster_configs.fields import Block
from cluster_configs.quantities import is_duration, is_size

_LIKE_NUMBER: Final = re.compile(r"[-+]?(?:0[xob][0-9a-fA-F_]+|[0-9][0-9_,.:]*)", re.ASCII)

_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def is_echo(error: ErrorDetails) -> bool:
    """Whether an error only says that another one is there."""
    if error["type"] == "too_short":
        # Items that have faults of their own are not counted.
        least: int = (error.get("ctx") or {}).get("min_length", 0)
        return len(error["input"]) >= least
    return error["type"] == "default_factory_not_called"


def _inner(annotation: Any) -> Any:
    """An annotation without Annotated, and without None in a union."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        options = [a for a in get_args(annotation) if a is not type(None)]
        if type(None) in get_args(annotation) and len(options) == 1:
            annotation = options[0]
            continue
        return annotation


def annotation_at(model: type[BaseModel], path: Path) -> Any:
    """What a document's schema has at ``path``; ``None`` when it has nothing there."""
    here: Any = model
    for part in path:
        here = _inner(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = next((f for f in here.model_fields.values() if f.alias == part), None)
            if field is None:
                return None
            here = field.annotation
        elif get_origin(here) is tuple and isinstance(part, int):
            here = get_args(here)[0]
        elif isinstance(get_origin(here), type) and issubclass(get_origin(here), Mapping):
            here = get_args(here)[1]
        else:
            return None
    return _inner(here)


def keys_of(block: Any) -> list[str]:
    """Keys that may be written in a block, as written."""
    if isinstance(block, type) and issubclass(block, BaseModel):
        return [f.alias or name for name, f in block.model_fields.items()]
    return []


def message(error: ErrorDetails, model: type[Block], path: Path, text: str | None) -> str:
    """What is wrong at ``path``. ``text`` is what stands in the file there, if it is a scalar."""
    kind, context, value = error["type"], error.get("ctx") or {}, error["input"]
    said = shown(text if text is not None else value) if isinstance(value, str | int | float) else _a(value)
    loc = error["loc"]
    if kind == "extra_forbidden":
        known = keys_of(annotation_at(model, path[:-1]))
        return f"unknown key {shown(path[-1])}{nearest(str(path[-1]), known)}; allowed: {listed(known)}"
    if kind == "missing":
        return f"{path[-1]} is missing; {_required(annotation_at(model, path))}"
    if kind == "literal_error":
        choices = choices_of(annotation_at(model, path))
        if loc and loc[-1] == "[key]":
            parent = annotation_at(model, path[:-1])
            choices = choices_of(_inner(get_args(parent)[0]))
            return f"unknown key {shown(path[-1])}{nearest(str(path[-1]), choices)}; allowed: {listed(choices)}"
        near = nearest(text if text is not None else str(value), choices)
        return f"{said} is not allowed here{near}; allowed: {listed(choices)}"
    if kind == "value_error":
        reason = str(context.get("error", error["msg"]))
        # A value from the environment may be a secret.
        hidden = isinstance(value, str) and text is not None and "${" in text
        return reason.replace(shown(value), f"the value of {text}") if hidden else reason
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        percent = "; a share, so 90 % is 0.9" if key == "le" and context.get(key) == 1 else ""
        return f"{said} is out of range; allowed: {words} {context.get(key):g}{percent}"
    return _by_type(kind, said, value, text, path, context, error["msg"])


def _by_type(
    kind: str, said: str, value: Any, text: str | None, path: Path, context: Mapping[str, Any], msg: str
) -> str:
    if kind in ("int_type", "float_type", "int_from_float", "int_parsing", "float_parsing"):
        number = "a whole number" if kind.startswith("int") else "a number"
        return f"{said} is not {number}; allowed: {number}{_number_hint(value, text, path)}"
    if kind == "finite_number":
        return f"{said} is not a finite number; allowed: a number"
    if kind == "string_type":
        if isinstance(value, bool | int | float):
            what = "a switch" if isinstance(value, bool) else "a number"
            return f'{said} is {what}, text is needed; write it in quotes: "{text if text is not None else value}"'
        return f"{said} cannot stand here; allowed: text"
    if kind == "bool_type":
        return f"{said} is no switch; allowed: true, false"
    if kind in ("model_type", "dict_type", "mapping_type", "model_attributes_type"):
        return f"{said} cannot stand here; allowed: a block of keys"
    if kind in ("tuple_type", "list_type"):
        hint = f"; write [{text}]" if isinstance(value, str) and text is not None and len(text) <= 40 else ""
        return f"{said} is not a list; allowed: a list{hint}"
    if kind in ("too_short", "too_long"):
        return f"{context.get('actual_length')} entries; allowed: {_length(context)}"
    if kind in ("string_too_short", "string_too_long"):
        return f"{len(str(value))} characters; allowed: {_length(context)}"
    return f"{said}: {msg}"


def _length(context: Mapping[str, Any]) -> str:
    return f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"


def _number_hint(value: Any, text: str | None, path: Path) -> str:
    word = text if text is not None else str(value)
    key = next((p for p in reversed(path) if isinstance(p, str)), "")
    if isinstance(value, str) and (is_duration(word) or is_size(word)):
        unit = " of milliseconds" if key.endswith("Ms") or key in ("above", "below") else ""
        return f"{unit} without a unit"
    if isinstance(value, str) and word.startswith("${"):
        return "; ${NAME} stands for text only"
    if isinstance(value, str) and _LIKE_NUMBER.fullmatch(word):
        return " in plain decimal digits, without leading zeros, '_' or ':'"
    return ""


def _a(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a block of keys"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else shown(value)


def choices_of(annotation: Any) -> list[str]:
    """What may be written where only some words may; an empty list elsewhere."""
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def _required(annotation: Any) -> str:
    choices = choices_of(annotation)
    if choices:
        return f"allowed: {listed(choices)}"
    known = keys_of(annotation)
    if known:
        return f"write a block with {listed(known)}"
    if get_origin(annotation) is tuple:
        return "write a list"
    if isinstance(get_origin(annotation), type) and issubclass(get_origin(annotation), Mapping):
        return "write a block of keys"
    return "write a value"
