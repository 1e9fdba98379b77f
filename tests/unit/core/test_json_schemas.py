"""Schemas that no engine can take: references in circles, sizes, and what they repeat."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.json_schemas import MOST_ITEMS, endless_reference, pattern_repeats, repeats_too_often, size_of

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


@pytest.mark.parametrize(
    ("pattern", "more", "most"),
    [
        ("^[a-z]+@x*$", 0, 0),
        ("a{3}", 2, 3),
        ("[a-z{}]{3}\\{9}", 2, 3),
        ("(ab){3}", 4, 3),
        ("(ab|c){2,4}", 9, 4),
        ("x(a{3}b){2,}", 6, 3),
        ("((a{10}){10}){10}", 999, 10),
        ("a{0}b{,9}", 0, 0),
        ("(a{2}", 1, 2),
        ("a{2})){2}", 2, 2),
        ("a{999999999999999999}" * 3, 10**9 - 3, 999999999999999999),
    ],
)
def test_what_a_pattern_repeats(pattern: str, more: int, most: int) -> None:
    assert pattern_repeats(pattern) == (more, most)


@given(st.text(alphabet="ab(){}[]\\,|123+*^$", max_size=60))
def test_any_pattern_is_counted(pattern: str) -> None:
    more, most = pattern_repeats(pattern)
    assert 0 <= more <= 10**9 and most >= 0


STRING = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        None,
        {"type": "array", "minItems": 10, "maxItems": MOST_ITEMS - 10},
        {"properties": {"maxItems": {"type": "array", "maxItems": 9, "items": {**STRING, "maxLength": 1_000_000}}}},
        {"pattern": "^[a-z]{1,128}$"},
        {"pattern": ["a{999}"], "maxItems": "999999", "minLength": True},
    ],
)
def test_what_an_engine_can_repeat_passes(schema: Any) -> None:
    assert repeats_too_often([schema]) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"minItems": 1_000_000_000}, "come to 1000000000 in all; allowed is 40000."),
        ({"maxItems": 1e9}, "come to 1000000000 in all; allowed is 40000."),
        # One in the other, or one beside the other.
        (
            {"maxItems": 25_000, "items": {"maxItems": 25_000, "items": STRING}},
            "come to 50000 in all; allowed is 40000.",
        ),
        ({"properties": {"default": {"maxProperties": 40_001}}}, "come to 40001 in all; allowed is 40000."),
        ({"minLength": 1_000_001}, "has a minLength of 1000001; allowed is 1000000."),
        ({"anyOf": [{"pattern": "a{129}"}]}, "has a pattern that repeats a part 129 times; allowed is 128."),
        (
            {"patternProperties": {"(a{2}){200,}": STRING}},
            "has a pattern that repeats a part 200 times; allowed is 128.",
        ),
        ({"pattern": "[a-z]{0,100}" * 20}, "written out that is 1980 parts more; allowed are 500."),
        ({"pattern": "((a{10}){10}){10}"}, "written out that is 999 parts more; allowed are 500."),
    ],
)
def test_what_no_engine_can_repeat_is_told(schema: dict[str, Any], said: str) -> None:
    assert str(repeats_too_often([schema])).endswith(said)


def test_several_schemas_share_a_bound() -> None:
    one = {"maxItems": 30_000, "pattern": "(a{10}){40}"}
    assert repeats_too_often([one]) is None
    assert repeats_too_often([one, one]) is not None
    assert repeats_too_often([one, one], 2) is None
