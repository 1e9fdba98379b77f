"""The requests of the tour, and what each must come out as. Pure: nothing here asks anybody."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["chat", "stream", "tool", "bad", "stranger"]

TOOL_NAME: Final = "order_status"
TOOL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "pattern": "^[0-9]{5}$"},
        "notify": {"type": "string", "enum": ["email", "sms"]},
    },
    "required": ["order_id", "notify"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Stop:
    """One request of the tour.

    ``languages`` are the answers of the detector that are right; ``topic`` is what it asks about, an id of the embedded
    model's corpus.
    """

    name: str
    text: str
    languages: frozenset[str]
    topic: str | None = None
    kind: Kind = "chat"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The chat request."""
        body = {"messages": [{"role": "user", "content": self.text}], "temperature": 0, **self.extra}
        if self.kind == "stream":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.kind == "tool":
            function = {"name": TOOL_NAME, "description": "Look an order up", "parameters": TOOL_SCHEMA}
            body["tools"] = [{"type": "function", "function": function}]
            body["tool_choice"] = {"type": "function", "function": {"name": TOOL_NAME}}
        return body


def _in(*codes: str) -> frozenset[str]:
    return frozenset(codes)


#: Lines the embedded model is trained on; the mixed one is made as its training makes them: a trained line with an
#: opening and a product's name in it. What it makes of lines it never saw is a figure of its evaluation, not a fault.
STOPS: Final = (
    Stop("zh short", "怎么退货", _in("zh"), "return_item"),
    Stop("zh long", "您好，我的账号密码想不起来了，请问该如何重设？", _in("zh"), "reset_password"),
    Stop("en short", "How do I reset my password?", _in("en"), "reset_password"),
    Stop("en long", "The shoes do not suit me and I would like to return them", _in("en"), "return_item"),
    Stop("ja short", "返品したい", _in("ja"), "return_item"),
    Stop("ja long", "先週注文した商品の現在の状況を教えていただけますでしょうか", _in("ja"), "order_status"),
    Stop("ko short", "배송 기간을 알려 주세요", _in("ko"), "delivery_time"),
    Stop("ko long", "지난주에 주문한 상품이 현재 어떤 상태인지 확인 부탁드립니다", _in("ko"), "order_status"),
    Stop("id short", "Saya lupa kata sandi", _in("id", "ms"), "reset_password"),
    Stop("id long", "Barang sudah saya kirim balik, tapi uangnya belum kembali", _in("id", "ms"), "refund_status"),
    Stop("ar short", "كيف أرجع منتجاً؟", _in("ar"), "return_item"),
    Stop("ar long", "هل يمكنكم إخباري كيف أنشئ كلمة مرور جديدة؟", _in("ar"), "reset_password"),
    Stop("mixed zh+en", "您好，我的 iPhone 订单到哪了？", _in("zh"), "order_status"),
    Stop("ja stream", "パスワードの再設定はどうすればいいですか？", _in("ja"), "reset_password", "stream"),
    Stop("en named tool", "Where is my order?", _in("en"), kind="tool"),
    Stop("bad request", "How long does delivery take?", _in(), kind="bad", extra={"temperature": 9}),
    Stop("wrong key", "Hello", _in(), kind="stranger"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What came back. ``record`` is what the region kept of the request; ``None`` values were not told."""

    status: int
    headers: Mapping[str, str]
    text: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    answer_language: str | None = None
    fault: str | None = None


#: How Unicode names of letters begin, and the script that is.
_SCRIPTS: Final = (
    ("HANGUL", "hangul"),
    ("ARABIC", "arabic"),
    ("HIRAGANA", "kana"),
    ("KATAKANA", "kana"),
    ("CJK", "han"),
    ("LATIN", "latin"),
)


def script_shares(text: str) -> dict[str, float]:
    """Share of each script among the letters of ``text``: han, kana, hangul, arabic, latin, other."""
    counts: dict[str, int] = {}
    for char in text:
        if not char.isalpha():
            continue
        name = unicodedata.name(char, "")
        script = next((s for start, s in _SCRIPTS if name.startswith(start)), "other")
        counts[script] = counts.get(script, 0) + 1
    letters = sum(counts.values())
    return {script: count / letters for script, count in counts.items()} if letters else {}


def script_fault(text: str, language: str) -> str | None:
    """Why ``text`` cannot be in ``language`` by its script, ``None`` when it can. Latin names are let pass."""
    shares = script_shares(text)
    own = {"zh": "han", "zh-Hant": "han", "ja": "kana", "ko": "hangul", "ar": "arabic"}.get(language, "latin")
    least = {"kana": 0.2, "latin": 0.8}.get(own, 0.5)
    if shares.get(own, 0.0) < least:
        return f"the answer is {shares.get(own, 0.0):.0%} {own}, which is not {language}"
    if own == "han" and shares.get("kana", 0.0) > 0:
        return f"the answer has kana, which is not {language}"
    return None


#: The answer of each topic, by language and by topic.
Answers = Mapping[str, Mapping[str, str]]


def check(stop: Stop, seen: Seen, answers: Answers | None = None) -> list[str]:
    """What is wrong with what came back; empty when it came out as it should.

    ``answers`` are those of the model's corpus, which it has to give word for word; ``None`` for a model that words
    its answers itself.
    """
    if seen.fault is not None:
        return [seen.fault]
    if stop.kind == "bad":
        return _refused(seen, 400, "temperature")
    if stop.kind == "stranger":
        return _refused(seen, 401, None)
    if seen.status != 200:
        return [f"status {seen.status}, expected 200: {(seen.error or {}).get('message')}"]
    faults = []
    language = seen.headers.get("x-grix-language", "")
    if language not in stop.languages:
        faults.append(f"language {language or 'missing'}, expected {' or '.join(sorted(stop.languages))}")
    endings = ("stop", "tool_calls") if stop.kind == "tool" else ("stop",)
    if seen.finish_reason not in endings:
        faults.append(f"finish_reason {seen.finish_reason}, expected {' or '.join(endings)}")
    if not (seen.usage or {}).get("completion_tokens"):
        faults.append("no tokens in usage")
    if seen.record is None:
        faults.append("the region keeps no record of it")
    if stop.kind == "tool":
        return faults + _tool_faults(seen)
    if not seen.text.strip():
        return [*faults, "the answer is empty"]
    wrong_script = script_fault(seen.text, language)
    if wrong_script is not None:
        faults.append(wrong_script)
    elif seen.answer_language is not None and seen.answer_language not in {language, *stop.languages}:
        faults.append(f"the answer is in {seen.answer_language}, expected {language}")
    if answers is not None:
        faults += _topic_faults(stop, seen.text, answers)
    return faults


def _topic_faults(stop: Stop, text: str, answers: Answers) -> list[str]:
    """Whether ``text`` is the answer of the stop's topic; its language is looked at elsewhere."""
    if stop.topic is None:
        return []
    wanted = {answers[code][stop.topic]: code for code in sorted(stop.languages) if code in answers}
    if text.strip() in wanted:
        return []
    told = {answer: f"{topic} in {code}" for code, topics in answers.items() for topic, answer in topics.items()}
    got = told.get(text.strip(), "none of the corpus")
    expected = f"{stop.topic} in {' or '.join(wanted.values())}"
    return [f"the answer is {got}, expected {expected}: wanted {' or '.join(map(repr, wanted))}, got {text!r}"]


def _refused(seen: Seen, status: int, param: str | None) -> list[str]:
    faults = [] if seen.status == status else [f"status {seen.status}, expected {status}"]
    error = seen.error or {}
    missing = [name for name in ("message", "type", "param", "code") if name not in error]
    if missing:
        faults.append(f"the error envelope lacks {', '.join(missing)}")
    elif error["param"] != param:
        faults.append(f"error.param is {error['param']}, expected {param}")
    return faults


def _tool_faults(seen: Seen) -> list[str]:
    if len(seen.tool_calls) != 1:
        return [f"{len(seen.tool_calls)} tool calls, expected 1"]
    function = seen.tool_calls[0].get("function") or {}
    if function.get("name") != TOOL_NAME:
        return [f"tool {function.get('name')}, expected {TOOL_NAME}"]
    try:
        arguments = json.loads(function.get("arguments") or "")
    except ValueError as error:
        return [f"the tool's arguments are no JSON: {error}"]
    return schema_faults(arguments, TOOL_SCHEMA)


def schema_faults(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Against the subset of JSON Schema that :data:`TOOL_SCHEMA` uses."""
    if not isinstance(value, dict):
        return ["the tool's arguments are no object"]
    known = schema["properties"]
    faults = [f"argument {name} is missing" for name in schema["required"] if name not in value]
    faults += [f"argument {name} is unknown" for name in value if name not in known]
    for name, rule in known.items():
        if name not in value:
            continue
        given = value[name]
        if not isinstance(given, str):
            faults.append(f"argument {name} is no string")
        elif "enum" in rule and given not in rule["enum"]:
            faults.append(f"argument {name} is {given!r}, allowed: {', '.join(rule['enum'])}")
        elif "pattern" in rule and re.fullmatch(rule["pattern"], given) is None:
            faults.append(f"argument {name} is {given!r}, allowed: {rule['pattern']}")
    return faults
