"""Schemas that no value satisfies because their references only lead in circles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.json_schemas import endless_reference, size_of

A = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"$ref": "#"}, "#"),
        ({**A, "$defs": {"a": A}}, "#/$defs/a"),
        ({**A, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}}, "#/$defs/a"),
        ({"properties": {"x": {"items": A}}, "$defs": {"a": A}}, "#/$defs/a"),
        ({"anyOf": [{"$ref": "#/anyOf/0"}]}, "#/anyOf/0"),
        ({**A, "$defs": {"a": {"$ref": "#/$defs/b~1c"}, "b/c": A}}, "#/$defs/a"),
    ],
)
def test_a_circle_of_references_is_found(schema: dict[str, Any], reference: str) -> None:
    assert endless_reference(schema) == reference


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {**A, "$defs": {"a": {"type": "array", "items": A}}},
        {**A, "$defs": {"a": {"anyOf": [A, {"type": "null"}]}}},
        {"$ref": "#/$defs/none"},
        {"$ref": "https://example.com/schema"},
        {"properties": {"$ref": {"type": "string"}}},
        {"enum": [{"$ref": "#"}], "const": {"$ref": "#/const"}},
        {"$ref": 7},
        {"$ref": "#/allOf/99", "allOf": []},
    ],
)
def test_what_comes_to_a_schema_or_nowhere_is_no_circle(schema: dict[str, Any]) -> None:
    assert endless_reference(schema) is None


REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/$defs/c", "#/items", "x"]).map(lambda r: {"$ref": r})
NODES = st.recursive(
    REFERENCES | st.just({"type": "string"}),
    lambda inner: st.fixed_dictionaries({"items": inner}) | st.fixed_dictionaries({"anyOf": st.lists(inner)}),
    max_leaves=5,
)


@given(NODES, st.fixed_dictionaries(dict.fromkeys("abc", NODES)))
def test_looking_always_ends(root: dict[str, Any], defs: dict[str, Any]) -> None:
    endless_reference({**root, "$defs": defs})


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        ({}, 0),
        (None, 0),
        ({"type": "string"}, 1),
        ({"enum": [1, 2, None]}, 4),
        ({"properties": {"a": {"type": "integer"}, "b": {}}}, 4),
        ({"pattern": "x" * 149}, 3),
        ({"y" * 50: 1}, 2),
        ({"anyOf": [{"anyOf": [{"type": "null"}]}]}, 5),
    ],
)
def test_the_size_of_a_schema(schema: Any, size: int) -> None:
    assert size_of(schema) == size
