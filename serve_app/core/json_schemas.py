"""What a JSON schema of a caller must not be: one whose references only lead back to themselves.

No value satisfies it, so an engine held to it has no token to choose and fails. A schema that contains itself, such as
a tree, is another thing: its references lead through a property or an item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

#: Keys whose values are data, not schemas.
_DATA: Final = frozenset({"enum", "const", "default", "examples"})


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
