"""Evaluate tiny-qwen: `python -m deployments.models.tiny_qwen.evaluate [--model DIR] [--json] [--robust]`.

Greedy answers by transformers to every trained and held-out phrasing, under one own-language system prompt of
each register. Trained phrasings must give the exact answer; held-out ones show how little a model of this
size understands.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from deployments.models.tiny_qwen import MODEL_DIR, PACKAGE_DIR, strangers
from deployments.models.tiny_qwen.augment import HANT, typo
from deployments.models.tiny_qwen.chatml import IM_END, Message, prompt
from deployments.models.tiny_qwen.corpus import LANGUAGES, REFUSAL, Corpus, load_corpora
from deployments.models.tiny_qwen.dialogues import pasted_text

THREADS = 2
BATCH = 64
MAX_NEW_TOKENS = 160
PROGRESS_S = 5.0
ROBUST_PER_LANGUAGE = 52
LONG_PER_LANGUAGE = 3
LONG_CHARS = 4000


@dataclass(frozen=True)
class Question:
    """A prompt and what should come out; `kind` names the row of the table."""

    kind: str
    language: str
    topic: str
    messages: tuple[Message, ...]
    answer: str


@dataclass(frozen=True)
class Reply:
    """What the model said; `stopped` is false when it ran into the token limit."""

    text: str
    stopped: bool


Answers = Callable[[list[str]], list[Reply]]


def questions(corpora: Mapping[str, Corpus], register: str) -> list[Question]:
    """Every phrasing, each below one of its language's system prompts of that register, in turn."""
    asked = []
    for language, corpus in corpora.items():
        systems = corpus.formal if register == "formal" else corpus.plain
        lines = [("trained", topic, line) for topic in corpus.all_topics for line in topic.trained]
        lines += [("held_out", topic, line) for topic in corpus.all_topics for line in topic.held_out]
        for i, (kind, topic, line) in enumerate(lines):
            kind = f"refusal_{kind}" if topic.id == REFUSAL else kind
            messages = (Message("system", systems[i % len(systems)]), Message("user", line))
            asked.append(Question(kind, language, topic.id, messages, topic.answer))
    return asked


def robust_questions(corpora: Mapping[str, Corpus], rng: random.Random, templates: Mapping[str, str]) -> list[Question]:
    """Trained phrasings in rough conditions: typos, capitals, long texts, strange or no system prompts."""
    asked = []
    english = corpora["en"]
    for language, corpus in corpora.items():
        others = [other for other in corpora.values() if other.language != language]
        for i in range(ROBUST_PER_LANGUAGE):
            topic = corpus.topics[i % len(corpus.topics)]
            line = rng.choice(topic.trained)
            system = Message("system", rng.choice(corpus.formal))
            other = rng.choice(others)
            merged = f"{rng.choice(corpus.formal)}\n\n{rng.choice(strangers.INSTRUCTIONS)}"
            earlier: list[Message] = []
            for _ in range(6):
                before = rng.choice(corpus.topics)
                earlier += [Message("user", rng.choice(before.trained)), Message("assistant", before.answer)]
            variants: dict[str, tuple[Message, ...]] = {
                "one typo": (system, Message("user", typo(rng, line, language))),
                "ALL CAPS": (system, Message("user", line.upper())),
                "six earlier turns": (system, *earlier, Message("user", line)),
                "no system prompt": (Message("user", line),),
                "other language's system prompt": (
                    Message("system", rng.choice(other.formal)),
                    Message("user", line),
                ),
                "caller's text appended to system": (Message("system", merged), Message("user", line)),
                "caller's text as system": (
                    Message("system", rng.choice(strangers.INSTRUCTIONS)),
                    Message("user", line),
                ),
            }
            if language in templates:
                variants["shipped template"] = (Message("system", templates[language]), Message("user", line))
            if language == "zh":
                variants["traditional characters"] = (system, Message("user", line.translate(HANT)))
            for kind, messages in variants.items():
                if kind != "ALL CAPS" or line.upper() != line:
                    asked.append(Question(kind, language, topic.id, messages, topic.answer))
            if i < LONG_PER_LANGUAGE:
                pasted = pasted_text(rng, corpus, LONG_CHARS)
                for kind, text, wanted in (
                    ("long text", pasted, corpus.refusal),
                    ("long text, then a question", f"{pasted}\n\n{line}", topic),
                    ("a question 200 times", f"{line}\n" * 200, topic),
                    ("one character 2000 times", line[0] * 2000, corpus.refusal),
                ):
                    asked.append(Question(kind, language, wanted.id, (system, Message("user", text)), wanted.answer))
            stranger = (system, Message("user", strangers.untrained_line(rng)))
            asked.append(Question("untrained language", language, REFUSAL, stranger, english.refusal.answer))
    return asked


def shipped_templates() -> dict[str, str]:
    """The system prompts of the shipped templates by language; empty where the configuration is not installed."""
    directory = PACKAGE_DIR.parents[2] / "cluster_configs" / "templates"
    documents = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.yaml")))
    return {document["spec"]["language"]: document["spec"]["system"] for document in documents}


def spoken_language(text: str, corpora: Mapping[str, Corpus]) -> str:
    """The language of the answer that `text` is, or shares the most character pairs with."""
    answers = [(language, topic.answer) for language, corpus in corpora.items() for topic in corpus.all_topics]
    for language, answer in answers:
        if text == answer:
            return language
    pairs = _pairs(text)

    def likeness(item: tuple[str, str]) -> float:
        other = _pairs(item[1])
        return sum((pairs & other).values()) / max(1, sum((pairs | other).values()))

    return max(answers, key=likeness)[0]


def _pairs(text: str) -> Counter[str]:
    return Counter(text[i : i + 2] for i in range(len(text) - 1))


def load(model_dir: Path) -> Answers:
    """A function that answers prompts greedily, in batches, with a progress line on standard error."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    model.train(False)
    end = tokenizer.convert_tokens_to_ids(IM_END)

    def answer(prompts: list[str]) -> list[Reply]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        replies: dict[int, Reply] = {}
        started_s = shown_s = time.monotonic()
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            inputs = tokenizer(
                [prompts[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False
            )
            with torch.inference_mode():
                ids = model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    do_sample=False,
                    top_k=None,
                    max_new_tokens=MAX_NEW_TOKENS,
                )
            for i, row in zip(chosen, ids[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
                stopped = end in row
                said = row[: row.index(end)] if stopped else row
                replies[i] = Reply(str(tokenizer.decode(said, skip_special_tokens=True)), stopped)
            now_s = time.monotonic()
            if now_s - shown_s > PROGRESS_S:
                shown_s, done = now_s, start + len(chosen)
                left_s = (now_s - started_s) / done * (len(order) - done)
                print(f"{done}/{len(order)} answers, {left_s:.0f} s left", file=sys.stderr, flush=True)
        return [replies[i] for i in range(len(prompts))]

    return answer


def figures(
    asked: Iterable[Question], replies: Iterable[Reply], corpora: Mapping[str, Corpus]
) -> dict[str, dict[str, dict[str, int]]]:
    """Counts `{row: {language: {"right", "of"}}}`; the rows are in the order of the table."""
    table: dict[str, dict[str, dict[str, int]]] = {}

    def count(row: str, language: str, right: bool) -> None:
        cell = table.setdefault(row, {}).setdefault(language, {"right": 0, "of": 0})
        cell["right"] += right
        cell["of"] += 1

    rows = {
        "trained": ("trained: exact answer", "trained: right language"),
        "held_out": ("held-out: right topic", "held-out: right language"),
        "refusal_trained": ("off-topic trained: refused", "off-topic: right language"),
        "refusal_held_out": ("off-topic held-out: refused", "off-topic: right language"),
    }
    for question, reply in zip(asked, replies, strict=True):
        exact, spoken = rows.get(question.kind, (f"{question.kind}: exact answer", f"{question.kind}: right language"))
        wanted = "en" if question.kind == "untrained language" else question.language
        count(exact, question.language, reply.text == question.answer)
        count(spoken, question.language, spoken_language(reply.text, corpora) == wanted)
        count("stopped by itself", question.language, reply.stopped)
    return table


def show(title: str, table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    """Print one table: a row a figure, a column a language, the share over all of them last."""
    print(f"{title:<50}" + "".join(f"{language:>9}" for language in LANGUAGES) + f"{'all':>9}")
    for row, cells in table.items():
        line = f"{row:<50}"
        for language in LANGUAGES:
            cell = cells.get(language)
            line += f"{cell['right']}/{cell['of']}".rjust(9) if cell else f"{'-':>9}"
        right, of = (sum(cell[key] for cell in cells.values()) for key in ("right", "of"))
        print(line + f"{right / of:>9.1%}")
    print(flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print the tables, or with --json the counts behind them."""
    parser = argparse.ArgumentParser(prog="python -m deployments.models.tiny_qwen.evaluate", description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=MODEL_DIR, help="directory of the model (default: the shipped one)"
    )
    parser.add_argument("--json", action="store_true", help="print counts as JSON")
    parser.add_argument(
        "--robust", action="store_true", help="also typos, capitals, long dialogues, strange system prompts"
    )
    args = parser.parse_args(argv)
    if not (args.model / "config.json").is_file():
        parser.error(f"--model: {args.model} holds no config.json; must be a directory that the training wrote")
    torch.set_num_threads(THREADS)
    corpora = load_corpora()
    answer = load(args.model)
    sets = {register: questions(corpora, register) for register in ("formal", "plain")}
    if args.robust:
        sets["robust"] = robust_questions(corpora, random.Random(1), shipped_templates())
    tables = {}
    for name, asked in sets.items():
        tables[name] = figures(asked, answer([prompt(question.messages) for question in asked]), corpora)
        if not args.json:
            show(
                f"{name} system prompts" if name != "robust" else "rough conditions, trained phrasings",
                tables[name],
            )
    if args.json:
        print(json.dumps(tables, ensure_ascii=False, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
