"""YAML itself: what is read differently from what it looks like, and what must not be read at all."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_configs.yaml_source import MOST_BYTES, MOST_VALUES, Source, read

_EMPTY = "the key has no value, which would wipe its default; remove the line or write a value"


def _one(text: str, **env: str) -> Source:
    sources, faults = read(text, "f", env)
    assert faults == [] and len(sources) == 1
    return sources[0]


def _value(text: str, **env: str) -> Any:
    source = _one(text, **env)
    assert source.faults == []
    return source.value


def _said(text: str | bytes, **env: str) -> list[str]:
    sources, faults = read(text, "f", env)
    return [f"{f.line}: {f.path}: {f.message}" for f in sorted([*(x for s in sources for x in s.faults), *faults])]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        *((word, word) for word in ("yes", "no", "on", "off", "y", "n", "Yes", "NO", "True", "FALSE")),
        ("12", 12),
        ("-3", -3),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("0b11", "0b11"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("2027-06-30", "2027-06-30"),
        ("=", "="),
        ('"true"', "true"),
        ("'12'", "12"),
        ("|\n  12", "12"),
        ("!!str 12", "12"),
        ("9" * 40, "9" * 40),
        ("1e9999", "1e9999"),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: Any) -> None:
    got = _value(f"k: {text}")["k"]
    assert got == value and type(got) is type(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert _value("{no: 1, 1: 2, true: 3, null: 4, 1.5: 5}") == {"no": 1, "1": 2, "true": 3, "null": 4, "1.5": 5}


def test_duplicate_key_names_both_lines() -> None:
    text = "models:\n  a: {replicas: 2}\nmodels:\n  b: {replicas: 1}"
    assert _said(text) == ["3: models: the key 'models' is written twice, on lines 1 and 3; keep one"]
    assert _said("a:\n  - {b: 1,\n     b: 2}") == [
        "3: a[0].b: the key 'b' is written twice, on lines 2 and 3; keep one"
    ]


def test_trailing_empty_block_is_a_duplicate_and_alone_it_is_a_fault() -> None:
    twice = "breaker: {failures: 5}\nother: 1\nbreaker:\n"
    assert _said(twice) == ["3: breaker: the key 'breaker' is written twice, on lines 1 and 3; keep one"]
    for null in ("", " ~", " null", " Null", " # nothing", " !!null ''"):
        assert _said(f"breaker:{null}") == [f"1: breaker: {_EMPTY}"]
    assert _said('"a b\\n":') == [f"1: 'a b?': {_EMPTY}"]
    assert _said("a: [1, ~]") == [f"1: a[1]: {_EMPTY}"]


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("${KEY}", {"KEY": "v"}, "v"),
        ("s3://${BUCKET}/${PATH_}/x", {"BUCKET": "b", "PATH_": "p"}, "s3://b/p/x"),
        ("${PORT}", {"PORT": "8000"}, "8000"),
        ('"${KEY}"', {"KEY": "true"}, "true"),
        ("$${KEY}", {}, "${KEY}"),
        ("$KEY", {"KEY": "v"}, "$KEY"),
        ("${A}", {"A": "${B}"}, "${B}"),
        ("${A}", {"A": "x: [y"}, "x: [y"),
    ],
)
def test_environment(text: str, env: dict[str, str], value: str) -> None:
    assert _value(f"k: {text}", **env)["k"] == value


def test_environment_inside_braces_and_brackets() -> None:
    text = "auth: {api_key: ${GATEWAY_KEY}, other: [${A}, x${B}y, $${C}]} # ${D}"
    assert _value(text, GATEWAY_KEY="k", A="a", B="b") == {"auth": {"api_key": "k", "other": ["a", "xby", "${C}"]}}
    assert _said("auth: {api_key: ${GATEWAY_KEY}}") == [
        "1: auth.api_key: the environment variable GATEWAY_KEY is not set; set it to what belongs here"
    ]
    assert _said("auth: {api_key: ${GATEWAY_KEY}}", GATEWAY_KEY="") == [
        "1: auth.api_key: the environment variable GATEWAY_KEY is empty; set it to what belongs here"
    ]


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("${KEY}", {}, "the environment variable KEY is not set; set it to what belongs here"),
        ("${KEY}", {"KEY": ""}, "the environment variable KEY is empty; set it to what belongs here"),
        ("${KEY}", {"KEY": " \t"}, "the environment variable KEY is empty; set it to what belongs here"),
        *(
            (
                f'"{text}"',
                {"KEY": "v"},
                f"'{text}' names no environment variable; allowed: ${{NAME}}, or $${{ for a plain ${{",
            )
            for text in ("${}", "${KEY:-x}", "${KEY", "${1A}", "${A B}")
        ),
    ],
)
def test_environment_fails_closed(text: str, env: dict[str, str], message: str) -> None:
    assert _said(f"k: {text}", **env) == [f"1: k: {message}"]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["1: (file): the file has no document; write one, or remove the file"]),
        ("# nothing\n\n", ["1: (file): the file has no document; write one, or remove the file"]),
        ("a: 1\n---\n", ["3: (document): the document is empty; write one, or remove the '---' before it"]),
        ("a:\n\tb: 1", ["2: (file): a tab cannot indent or start a value in YAML; allowed: spaces"]),
        ("a: - b", ["1: (file): this is not YAML: sequence entries are not allowed here"]),
        (
            "a: [1, 2",
            ["1: (file): this is not YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'"],
        ),
        ("a: b: c", ["1: (file): this is not YAML: mapping values are not allowed here"]),
        ("a: *x", ["1: (file): this is not YAML: found undefined alias 'x'"]),
        (b"a: 1\nb: \xff\xfe", ["2: (file): byte 8 is not UTF-8; save the file as UTF-8"]),
        ("a: \U0010fff0", ["1: (file): the characters U+10FFF0 and U+10FFF1 cannot stand here; remove them"]),
        ("a: 1\nb: \x07", ["2: (file): the character U+0007 cannot stand in YAML; remove it"]),
        (
            "a: !!python/object/apply:os.system [ls]",
            [
                "1: a: the tag 'tag:yaml.org,2002:python/object/apply:os.system' "
                "is not allowed; allowed: plain YAML without tags"
            ],
        ),
        ("a: !secret x", ["1: a: the tag '!secret' is not allowed; allowed: plain YAML without tags"]),
        ("a: !!int x", ["1: a: 'x' does not fit its tag; allowed: plain YAML without tags"]),
        ("? [a, b]\n: 1", ["1: (document): a list or block cannot be a key; allowed: text"]),
        ("a: &x\n  b: *x", ["2: a.b: the alias stands inside its own anchor; write the value out"]),
        ("a: {<<: 1}", ["1: a.<<: '<<' takes in another block; allowed: an alias of a block"]),
        ("a: &x {<<: *x}", ["1: a.<<: '<<' takes in another block; allowed: an alias of a block"]),
        ('a: "\\U99999999"', ["1: (file): this is not YAML: an escape in it names no character"]),
    ],
)
def test_files_refused(text: str | bytes, faults: list[str]) -> None:
    assert _said(text) == faults


def test_byte_order_mark_and_windows_lines_are_fine() -> None:
    sources, faults = read(b"\xef\xbb\xbfa: 1\r\nb: {c: 2}\r\n", "f", {})
    assert faults == [] and [s.value for s in sources] == [{"a": 1, "b": {"c": 2}}]
    assert sources[0].lines == {(): 1, ("a",): 1, ("b",): 2, ("b", "c"): 2}


def test_documents_before_a_syntax_error_are_still_looked_at() -> None:
    assert _said("a:\n---\nb: [") == [
        f"1: a: {_EMPTY}",
        "3: (file): this is not YAML: while parsing a flow node: expected the node content, but found '<stream end>'",
    ]


def test_merge_takes_in_what_is_not_written() -> None:
    text = "base: &b {x: 1, y: {z: 2}}\nother: &o {x: 8, w: 9}\nuse:\n  <<: [*b, *o]\n  x: 3\n"
    source = _one(text)
    assert source.value["use"] == {"x": 3, "y": {"z": 2}, "w": 9}
    assert source.line_of(("use", "x")) == 5 and source.line_of(("use", "y", "z")) == 1


def test_bombs_are_bounded() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    many = f"1: (document): more than {MOST_VALUES} values with aliases written out; allowed: fewer"
    assert _said("\n".join(rows)) == [many]
    merges = ["a0: &a0 {x: 1}"]
    merges += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)]
    assert _said("\n".join(merges)) == [many]
    assert _said("[" * 600) == ["1: (file): nested too deep; allowed: 40 levels"]
    assert _said("a: " + "[" * 60 + "]" * 60) == ["1: a" + "[0]" * 39 + ": nested too deep; allowed: 40 levels"]
    assert _said("x" * (MOST_BYTES + 1)) == [f"1: (file): {MOST_BYTES + 1} bytes are too many; allowed: {MOST_BYTES}"]
