"""What a JSON schema of a caller must not be: too large for an engine, or with references that only lead in circles.

A grammar is made of a schema before its first token: of some thousand properties or alternatives for a minute, on every
core and with gigabytes, while everybody else waits.

No value satisfies a reference that leads back to itself, so an engine held to it has no token to choose and fails. A
schema that contains itself, such as a tree, is another thing: its references lead through a property or an item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

#: Keys whose values are data, not schemas.
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
#: Text in a schema weighs as much as a member for each so many characters.
CHARS_A_MEMBER: Final = 50


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
