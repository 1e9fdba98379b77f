"""What a JSON schema of a caller must not be: too large for an engine, too often repeated, or with references that only
lead in circles.

A grammar is made of a schema before its first token: of some thousand properties or alternatives for a minute, on every
core and with gigabytes, while everybody else waits.

What a schema repeats by a number is as large, and takes no room in it. The bounds are those of the two backends that
vLLM has for schemas: xgrammar 0.2.8 compiles no regular expression that repeats a part more than 128 times, and takes
9 s for twenty that may repeat one a hundred times; llguidance 1.7.6 breaks above 60,000 items, and hangs long before a
billion. How long a text may be costs neither of them anything.

No value satisfies a reference that leads back to itself, so an engine held to it has no token to choose and fails. A
schema that contains itself, such as a tree, is another thing: its references lead through a property or an item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: Keys whose values are data, not schemas.
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
#: Text in a schema weighs as much as a member for each so many characters.
CHARS_A_MEMBER: Final = 50
_COUNTED: Final = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
_LENGTHS: Final = frozenset({"minLength", "maxLength"})
MOST_ITEMS: Final = 40_000
LONGEST_TEXT: Final = 1_000_000
#: Of one part of a regular expression; and what all of a schema come to when they are written out.
MOST_TIMES: Final = 128
MOST_PARTS: Final = 500
_ENOUGH: Final = 10**9
_PART: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,18})(?:,(\d{0,18}))?\}|.", re.DOTALL)


def size_of(schema: Any) -> int:
    """How large a schema is: its members and items at every depth, and its text."""
    size, todo = 0, [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            size += len(one) // CHARS_A_MEMBER
        elif isinstance(one, Mapping):
            size += len(one)
            todo.extend(one)
            todo.extend(one.values())
        elif isinstance(one, list):
            size += len(one)
            todo.extend(one)
    return size


def repeats_too_often(schemas: Iterable[Any], times: int = 1) -> str | None:
    """What is said of schemas that together repeat more than an engine can take, ``None`` of others.

    ``times`` as much is allowed of what they come to together.
    """
    items, parts = 0.0, 0
    for key, value in (found for schema in schemas for found in _said(schema)):
        if key == "pattern":
            written_out, most = pattern_repeats(value)
            parts += written_out
            if most > MOST_TIMES:
                return f"has a pattern that repeats a part {most} times; allowed is {MOST_TIMES}."
        elif key in _COUNTED:
            items += value
        elif value > LONGEST_TEXT:
            return f"has a {key} of {value}; allowed is {LONGEST_TEXT}."
    if items > times * MOST_ITEMS:
        said = f"asks for too many items: {', '.join(sorted(_COUNTED))}"
        return f"{said} come to {items:.0f} in all; allowed is {times * MOST_ITEMS}."
    if parts > times * MOST_PARTS:
        said = f"has patterns that repeat too much: written out that is {parts} parts more"
        return f"{said}; allowed are {times * MOST_PARTS}."
    return None


def _said(schema: Any) -> Iterator[tuple[str, Any]]:
    """Each number of items or characters in a schema by its key, and each of its regular expressions.

    Data is looked through as well: whether ``default`` is a schema's or a property of that name is not told here.
    """
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, Mapping):
            for key, value in node.items():
                if (key in _COUNTED | _LENGTHS and type(value) in (int, float)) or (
                    key == "pattern" and isinstance(value, str)
                ):
                    yield key, value
                elif key == "patternProperties" and isinstance(value, Mapping):
                    yield from (("pattern", pattern) for pattern in value)
                todo.append(value)


def pattern_repeats(pattern: str) -> tuple[int, int]:
    """How many parts a regular expression has more when its counted repetitions are written out; the largest count.

    An expression that is none is counted somehow; who compiles it refuses it.
    """
    parts = most = last = 0
    groups: list[int] = []
    size = 0
    for found in _PART.finditer(pattern):
        low, high = found.groups()
        if low is not None:
            times = max(int(low), int(high or 0))
            most = max(most, times)
            if times:
                size, last = min(size + last * (times - 1), _ENOUGH), min(last * times, _ENOUGH)
        elif found[0] == "(":
            groups.append(size)
            size = last = 0
        elif found[0] == ")" and groups:
            last = size
            size = min(size + groups.pop(), _ENOUGH)
        elif found[0] not in "*+?|^$":
            parts, size, last = parts + 1, size + 1, 1
    return size + sum(groups) - parts, most


def endless_reference(schema: Mapping[str, Any]) -> str | None:
    """The first reference that never comes to a schema, or ``None``."""
    ended: set[str] = set()
    for reference in _references(schema):
        seen: dict[str, None] = {}
        here: str | None = reference
        while here is not None and here not in ended:
            if here in seen:
                return reference
            seen[here] = None
            here = _reference(_at(schema, here))
        ended |= seen.keys()
    return None


def _reference(node: Any) -> str | None:
    found = node.get("$ref") if isinstance(node, Mapping) else None
    return found if isinstance(found, str) and found.startswith("#") else None


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            found = _reference(node)
            if found is not None:
                yield found
            waiting.extend(value for key, value in node.items() if key not in _DATA)
        elif isinstance(node, list):
            waiting.extend(node)


def _at(schema: Mapping[str, Any], pointer: str) -> Any:
    """What a local reference points to, ``None`` when there is nothing."""
    node: Any = schema
    for raw in pointer.split("/")[1:]:
        key = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isascii() and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
