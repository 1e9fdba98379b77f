"""Smoke tests of a release: one question an agent and language, asked on the way that requests go, and what its answer
must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.answers import language_of_answer, text_of_whole
from serve_app.core.openings import judge_whole, parsed
from serve_app.core.rules import same_language
from serve_app.core.table import Agent, Table, Tenant

#: Who asks. Its data may be anywhere, because it is in the documents.
ASKER: Final = Tenant(name="grix-smoke", keys=(), residency=frozenset({"any"}))


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """``markers``: one of them stands in the answer. ``own_instruction``: the template speaks its own language.

    ``ask`` is empty where nobody has written a question of this language.
    """

    language: str
    ask: str
    markers: tuple[str, ...] = ()
    own_instruction: bool = True

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SmokeTest:
        """From its keys in YAML, every one written out."""
        markers, own = tuple(document["markers"]), bool(document["ownInstruction"])
        return cls(document["language"], document["ask"], markers, own)

    def body(self, agent: str) -> bytes:
        """The request, to an agent by its name: rules would choose only one for each language."""
        messages = [{"role": "user", "content": self.ask}]
        return json.dumps({"model": agent, "messages": messages, "temperature": 0}, ensure_ascii=False).encode()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-language": self.language}


#: What is asked where the Federation has no question of its own. Japanese in desu and masu, Korean in haeyo or hapsyo.
QUESTIONS: Final[Mapping[str, SmokeTest]] = {
    test.language: test
    for test in (
        SmokeTest("ja", "返品したい", ("です", "ます", "ください")),
        SmokeTest("ko", "배송 기간을 알려 주세요", ("요", "니다")),
        SmokeTest("zh", "我想退货"),
        SmokeTest("zh-Hant", "我想退貨"),
        SmokeTest("en", "I want to return an item"),
        SmokeTest("id", "Saya ingin mengembalikan barang"),
        SmokeTest("ar", "أريد إرجاع المنتج"),
        SmokeTest("th", "ฉันต้องการคืนสินค้า"),
        SmokeTest("vi", "Tôi muốn trả lại hàng"),
        SmokeTest("es", "Quiero devolver un producto"),
    )
}
#: Asked of each release: what goes wrong with a register goes wrong here first.
ALWAYS: Final = ("ja", "ko")


def wrong_before(test: SmokeTest, table: Table) -> str:
    """What is wrong with the template of a test's language, or with the test, before anything is asked."""
    template = table.templates.get(test.language)
    if template is None:
        return f"{test.language}: there is no template of this language"
    told = language_of_answer(template.system, table.languages)
    if test.own_instruction and told is not None and not same_language(told, test.language, table.languages):
        return f"{test.language}: the template's instruction is in {told}"
    return "" if test.ask else f"{test.language}: there is no question to ask; write one into rollout.smoke"


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


def to_ask(documents: Sequence[Mapping[str, Any]], before: Table, tried: Table) -> dict[str, list[SmokeTest]]:
    """The tests of each agent here whose release is another one than ``before``.

    Languages are those of ``documents``, of each template that is another one, and :data:`ALWAYS` as far as there are
    templates; of these the ones that the agent serves, and where it serves none of them, all that it does serve.
    """
    known = {**QUESTIONS, **{test.language: test for test in map(SmokeTest.of, documents)}}
    old, new = ({code: t.digest for code, t in table.templates.items()} for table in (before, tried))
    wanted = {document["language"] for document in documents} & tried.languages.codes
    wanted |= {code for code in new if new[code] != old.get(code)} | {code for code in ALWAYS if code in old | new}
    tests = {}
    for agent in tried.own_agents.values():
        if agent.name in before.agents and before.agents[agent.name].release == agent.release:
            continue
        mine = {code for code in wanted if _serves(agent, code, tried)}
        mine = mine or {code for code in new if _serves(agent, code, tried)}
        tests[agent.name] = [known.get(code) or SmokeTest(code, "") for code in sorted(mine)]
    return tests


def _serves(agent: Agent, language: str, table: Table) -> bool:
    """Whether a rule sends requests of a language to an agent; one without rules is asked by name, in any."""
    matched = [rule.languages for rule in table.rules if rule.agent == agent.name]
    return not matched or any(
        codes is None or any(same_language(code, language, table.languages) for code in codes) for codes in matched
    )


def _finish_reason(body: bytes) -> str | None:
    choices = parsed(body).get("choices") or [{}]
    reason: str | None = choices[0].get("finish_reason")
    return reason
