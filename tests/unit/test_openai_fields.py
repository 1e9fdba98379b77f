"""The table of request fields is whole, and what is written about it is the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as TextParams

from serve_app.openai_fields import BY_KIND, FIELDS, Use, markdown, names
from serve_app.openai_request import parse_request
from serve_app.openapi import document
from serve_app.outcomes import STATUS, GrixError
from serve_app.ports import Kind
from tests.fakes import Site

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- request fields: begin -->\n", "\n<!-- request fields: end -->"
REWRITE = "from pathlib import Path; from tests.unit.test_openai_fields import rewritten; rewritten(Path('README.md'))"


def rewritten(readme: Path) -> None:
    """Puts the table of today into README.md."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}{markdown()}{END}{rest.partition(END)[2]}", encoding="utf-8")


def test_the_readme_shows_the_table() -> None:
    shown = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == markdown(), f'README.md is behind the table; run: .venv/bin/python -c "{REWRITE}"'


@pytest.mark.parametrize(("kind", "params"), [("chat", ChatParams), ("completion", TextParams)])
def test_every_field_of_the_official_client_is_in_the_table(kind: Kind, params: type) -> None:
    official = {name for base in (*params.__mro__, params) for name in getattr(base, "__annotations__", {})}
    assert {"model", "stream", "seed"} < official
    assert official - BY_KIND[kind].keys() == set()


def test_each_field_is_there_once_a_kind_and_says_something() -> None:
    rows = [(f.name, kind) for f in FIELDS for kind in f.kinds]
    assert len(rows) == len(set(rows))
    assert [f.name for f in FIELDS if not f.note and f.rule is None] == []
    assert {f.use for f in FIELDS} == set(get_args(Use))


def test_the_document_holds_what_may_be_sent_and_no_more() -> None:
    schemas = document()["components"]["schemas"]
    for kind, name in (("chat", "ChatRequest"), ("completion", "CompletionRequest")):
        allowed = names(kind, "honoured", "read", "ignored")  # type: ignore[arg-type]
        assert schemas[name]["properties"].keys() == allowed
        assert schemas[name]["additionalProperties"] is False


def test_the_document_is_one_schema_whose_references_are_there() -> None:
    told = document()
    text = json.dumps(told)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in told["components"]["schemas"]
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    operations = [o["operationId"] for path in told["paths"].values() for o in path.values()]
    assert len(operations) == len(set(operations))


def test_the_document_tells_every_status_of_the_error_table() -> None:
    wanted = {"200", *(str(s.http) for s in STATUS.values())}
    for path in document()["paths"].values():
        for operation in path.values():
            new = {"202"} if operation["operationId"] == "submitTask" else set()
            assert operation["responses"].keys() == wanted | new


def validator(name: str) -> jsonschema.Draft202012Validator:
    told = document()
    return jsonschema.Draft202012Validator({**told["components"]["schemas"][name], "components": told["components"]})


def plain(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values near one simple schema, right and wrong."""
    numbers = [schema[k] for k in ("minimum", "maximum") if k in schema]
    near = [n + d for n in numbers for d in (-1, 0, 1)]
    words = [*schema.get("enum", []), *(item for o in schema.get("oneOf", []) for item in o.get("enum", []))]
    return st.sampled_from([*near, *words, True, False, "", "x", [], ["x"], [1], {}, {"1": 1}, 0.5, 1, 1.0])


@given(data=st.data())
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_what_is_accepted_satisfies_the_document(kind: Kind, data: st.DataObject) -> None:
    name = "ChatRequest" if kind == "chat" else "CompletionRequest"
    checked = validator(name)
    least: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if kind == "chat" else {"prompt": "x"}
    field = data.draw(st.sampled_from(sorted(BY_KIND[kind].keys() - {"messages", "prompt"})))
    rule = BY_KIND[kind][field].rule
    value = data.draw(plain(rule.schema if rule else {}))
    body = {**least, field: value}
    try:
        parse_request(kind, json.dumps(body).encode(), {})
    except GrixError:
        return
    checked.validate(body)


async def test_the_document_is_served_to_who_has_a_key() -> None:
    site = Site()
    answer = await site.ask("GET", "/openapi.json")
    assert (answer.status_code, answer.json()) == (200, json.loads(json.dumps(document())))
    assert (await site.ask("GET", "/openapi.json", headers={})).status_code == 401


@pytest.mark.parametrize("path", document()["paths"])
async def test_a_method_that_is_not_there_is_told_which_are(path: str) -> None:
    there = {method.upper() for method in document()["paths"][path]}
    for method in {"GET", "POST", "PUT", "DELETE", "OPTIONS"} - there:
        answer = await Site().ask(method, path.replace("{", "").replace("}", ""))
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == there
