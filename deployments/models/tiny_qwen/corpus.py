"""The FAQ corpus: loading, checking, and the split into trained and held-out phrasings."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.models.tiny_qwen import CORPUS_DIR

LANGUAGES = ("zh", "en", "ja", "ko", "id", "ar")
TOPICS = (
    "greeting", "thanks", "goodbye", "reset_password", "change_email", "close_account", "order_status",
    "delivery_time", "change_address", "cancel_order", "return_item", "refund_status", "damaged_item",
    "wrong_item", "payment_methods", "payment_failed",
    "invoice", "coupon", "shipping_cost", "international_shipping",
    "opening_hours", "human_agent", "warranty", "size_guide", "out_of_stock", "gift_card",
)  # fmt: skip
#: The one in C takes a tenth of the time, where PyYAML has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
REFUSAL = "refusal"
"""Topic id of everything the shop cannot help with."""

HELD_OUT_PHRASINGS = 3
HELD_OUT_REFUSALS = 8
OPENING_CHARS = 4
"""Answers differ within this many characters, so that the model commits to a topic with its first tokens."""


class CorpusError(ValueError):
    """The corpus breaks its own rules; the message lists every fault, one a line."""


@dataclass(frozen=True)
class Topic:
    """One answer and the ways to ask for it; `held_out` phrasings are never trained on."""

    id: str
    answer: str
    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """One language. `frames` hold `{key}`, `templates` hold `{x}`."""

    language: str
    formal: tuple[str, ...]
    plain: tuple[str, ...]
    topics: tuple[Topic, ...]
    refusal: Topic
    templates: tuple[str, ...]
    fillers: tuple[str, ...]
    frames: tuple[str, ...]
    openers: tuple[str, ...]
    closers: tuple[str, ...]

    @property
    def all_topics(self) -> tuple[Topic, ...]:
        """The shop's topics and, last, the refusal."""
        return (*self.topics, self.refusal)

    def topic(self, topic_id: str) -> Topic:
        """The topic of that id; KeyError names an unknown one."""
        for topic in self.all_topics:
            if topic.id == topic_id:
                return topic
        raise KeyError(topic_id)


def load_corpora(directory: Path = CORPUS_DIR, languages: tuple[str, ...] = LANGUAGES) -> dict[str, Corpus]:
    """Read `<language>.yaml` of each language; CorpusError lists all faults of all files at once."""
    corpora: dict[str, Corpus] = {}
    faults: list[str] = []
    for language in languages:
        path = directory / f"{language}.yaml"
        try:
            raw = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
        except FileNotFoundError:
            faults.append(f"{path.name}: no such file; every language of the corpus needs one")
            continue
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            faults.append(f"{path.name}: not UTF-8 YAML: {error}")
            continue
        found = corpus_faults(raw, language)
        faults += [f"{path.name}: {fault}" for fault in found]
        if not found:
            corpora[language] = _build(raw)
    if faults:
        raise CorpusError("\n".join(faults))
    return corpora


def corpus_faults(raw: Any, language: str) -> list[str]:
    """What is wrong with the parsed YAML of one language; empty when nothing is."""
    shape = _shape_faults(raw, language)
    if shape:
        return shape
    faults = []
    if raw["language"] != language:
        faults.append(f"language: is {raw['language']!r}, must be {language!r}")
    faults += _count_faults(raw) + _text_faults(raw)
    ids = tuple(topic["id"] for topic in raw["topics"])
    if ids != TOPICS:
        missing, extra = sorted(set(TOPICS) - set(ids)), sorted(set(ids) - set(TOPICS))
        faults.append(f"topics: ids must be the fixed list in its order; missing {missing}, unknown {extra}")
    for name, mark, lines in (
        ("frames", "{key}", raw["frames"]),
        ("refusal.templates", "{x}", raw["refusal"]["templates"]),
    ):
        faults += [f"{name}: {line!r} must hold {mark} exactly once" for line in lines if line.count(mark) != 1]
    return faults + _answer_faults(raw)


def _shape_faults(raw: Any, language: str) -> list[str]:
    expected: dict[str, type] = {
        "language": str, "systems": dict, "topics": list, "refusal": dict,
        "frames": list, "openers": list, "closers": list,
    }  # fmt: skip
    if not isinstance(raw, dict):
        return [f"must be a mapping with {sorted(expected)}"]
    faults = [f"{key}: unknown key, allowed are {sorted(expected)}" for key in raw if key not in expected]
    faults += [
        f"{key}: must be a {kind.__name__}" for key, kind in expected.items() if not isinstance(raw.get(key), kind)
    ]
    if faults:
        return faults
    parts: list[tuple[str, Any, tuple[str, ...], tuple[str, ...]]] = [
        ("systems", raw["systems"], ("formal", "plain"), ())
    ]
    parts += [(f"topics[{i}]", topic, ("phrasings", "keys"), ("id", "answer")) for i, topic in enumerate(raw["topics"])]
    parts.append(("refusal", raw["refusal"], ("phrasings", "templates", "fillers"), ("answer",)))
    for where, part, lists, strings in parts:
        if not isinstance(part, dict) or set(part) != {*lists, *strings}:
            faults.append(f"{where}: must have exactly {sorted((*lists, *strings))}")
            continue
        faults += [f"{where}.{key}: must be a list" for key in lists if not isinstance(part[key], list)]
        faults += [f"{where}.{key}: must be a string" for key in strings if not isinstance(part[key], str)]
    if not faults:
        faults = [f"{where}: {text!r} must be a string" for where, text in _texts(raw) if not isinstance(text, str)]
    return faults


def _count_faults(raw: dict[str, Any]) -> list[str]:
    refusal = raw["refusal"]
    wanted = [
        ("systems.formal", raw["systems"]["formal"], 4), ("systems.plain", raw["systems"]["plain"], 4),
        ("refusal.phrasings", refusal["phrasings"], 40), ("refusal.templates", refusal["templates"], 6),
        ("refusal.fillers", refusal["fillers"], 20), ("frames", raw["frames"], 8),
        ("openers", raw["openers"], 6), ("closers", raw["closers"], 6),
    ]  # fmt: skip
    for topic in raw["topics"]:
        wanted.append((f"topics.{topic['id']}.phrasings", topic["phrasings"], 12))
        wanted.append((f"topics.{topic['id']}.keys", topic["keys"], 4))
    return [
        f"{where}: has {len(lines)} entries, must have {count}" for where, lines, count in wanted if len(lines) != count
    ]


def _text_faults(raw: dict[str, Any]) -> list[str]:
    faults = []
    for where, text in _texts(raw):
        if not text.strip():
            faults.append(f"{where}: is blank")
        if unicodedata.normalize("NFC", text) != text:
            faults.append(f"{where}: {text!r} is not NFC")
        if "<|" in text:
            faults.append(f"{where}: {text!r} looks like a special token")
    phrasings = [(where, text) for where, text in _texts(raw) if where.endswith("phrasings")]
    counts = Counter(text for _, text in phrasings)
    return faults + [f"{where}: {text!r} occurs more than once" for where, text in phrasings if counts[text] > 1]


def _answer_faults(raw: dict[str, Any]) -> list[str]:
    answers = [(f"topics.{topic['id']}", topic["answer"]) for topic in raw["topics"]]
    answers.append(("refusal", raw["refusal"]["answer"]))
    faults = []
    for i, (where, answer) in enumerate(answers):
        for other_where, other in answers[:i]:
            if answer[:OPENING_CHARS] == other[:OPENING_CHARS]:
                faults.append(f"{where}.answer: opens with {answer[:OPENING_CHARS]!r} like {other_where}")
    return faults


def _texts(raw: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for register in ("formal", "plain"):
        yield from ((f"systems.{register}", text) for text in raw["systems"][register])
    for topic in raw["topics"]:
        yield f"topics.{topic['id']}.answer", topic["answer"]
        yield from ((f"topics.{topic['id']}.{key}", text) for key in ("phrasings", "keys") for text in topic[key])
    yield "refusal.answer", raw["refusal"]["answer"]
    for key in ("phrasings", "templates", "fillers"):
        yield from ((f"refusal.{key}", text) for text in raw["refusal"][key])
    for key in ("frames", "openers", "closers"):
        yield from ((key, text) for text in raw[key])


def _build(raw: dict[str, Any]) -> Corpus:
    refusal = raw["refusal"]
    return Corpus(
        language=raw["language"],
        formal=tuple(raw["systems"]["formal"]),
        plain=tuple(raw["systems"]["plain"]),
        topics=tuple(
            _topic(topic["id"], topic["answer"], topic["phrasings"], HELD_OUT_PHRASINGS, topic["keys"])
            for topic in raw["topics"]
        ),
        refusal=_topic(REFUSAL, refusal["answer"], refusal["phrasings"], HELD_OUT_REFUSALS, []),
        templates=tuple(refusal["templates"]),
        fillers=tuple(refusal["fillers"]),
        frames=tuple(raw["frames"]),
        openers=tuple(raw["openers"]),
        closers=tuple(raw["closers"]),
    )


def _topic(topic_id: str, answer: str, phrasings: list[str], held_out: int, keys: list[str]) -> Topic:
    return Topic(topic_id, answer, tuple(phrasings[:-held_out]), tuple(phrasings[-held_out:]), tuple(keys))
