"""Smoke tests of a release: one question a language, asked on the way that requests go, and what its answer must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.answers import language_of_answer, text_of_whole
from serve_app.core.openings import judge_whole, parsed
from serve_app.core.rules import same_language
from serve_app.core.table import Table, Tenant

#: Who asks. Its data may be anywhere, because it is in the documents.
ASKER: Final = Tenant(name="grix-smoke", keys=(), residency=frozenset({"any"}))


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """``markers``: one of them stands in the answer. ``own_instruction``: the template speaks its own language."""

    language: str
    ask: str
    markers: tuple[str, ...] = ()
    own_instruction: bool = True

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SmokeTest:
        """From its keys in YAML, every one written out."""
        markers, own = tuple(document["markers"]), bool(document["ownInstruction"])
        return cls(document["language"], document["ask"], markers, own)

    @property
    def body(self) -> bytes:
        """The request."""
        messages = [{"role": "user", "content": self.ask}]
        return json.dumps({"messages": messages, "temperature": 0}, ensure_ascii=False).encode()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-language": self.language}


def wrong_instruction(test: SmokeTest, table: Table) -> str:
    """What is wrong with the template of a test's language, before anything is asked."""
    template = table.templates.get(test.language)
    if template is None:
        return f"{test.language}: there is no template of this language"
    told = language_of_answer(template.system, table.languages)
    if not test.own_instruction or told is None or same_language(told, test.language, table.languages):
        return ""
    return f"{test.language}: the template's instruction is in {told}"


def wrong_answer(test: SmokeTest, status: int, body: bytes, table: Table) -> str:
    """What is wrong with the answer to a test, empty when nothing is."""
    if status != 200:
        return f"{test.language}: answered with status {status}"
    if (fault := judge_whole(body)) is not None:
        return f"{test.language}: is no answer: {fault.message}"
    text = text_of_whole(body)
    if not text.strip():
        return f"{test.language}: the answer is empty"
    if _finish_reason(body) == "length":
        return f"{test.language}: the answer is cut short"
    told = language_of_answer(text, table.languages)
    if told is not None and not same_language(told, test.language, table.languages):
        return f"{test.language}: the answer is in {told}"
    if test.markers and not any(marker in text for marker in test.markers):
        return f"{test.language}: the register is wrong: the answer has none of {', '.join(test.markers)}"
    return ""


def to_ask(documents: Sequence[Mapping[str, Any]], table: Table) -> list[SmokeTest]:
    """The tests of languages that this service knows."""
    return [test for test in map(SmokeTest.of, documents) if test.language in table.languages.codes]


def _finish_reason(body: bytes) -> str | None:
    choices = parsed(body).get("choices") or [{}]
    reason: str | None = choices[0].get("finish_reason")
    return reason
