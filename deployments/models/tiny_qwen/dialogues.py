"""Training dialogues, drawn from the corpora without end.

The answer follows the language of the customer's last line; a system prompt, whatever its language, is a hint
and decides only where the line has no letters. Of several questions in one line the first is answered,
courtesies aside.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from deployments.models.tiny_qwen import strangers
from deployments.models.tiny_qwen.augment import SPACED, joined, noisy
from deployments.models.tiny_qwen.chatml import (
    END_OF_TEXT,
    TOOL_CALL_END,
    TOOL_CALL_START,
    Message,
    Segment,
    segments,
)
from deployments.models.tiny_qwen.corpus import REFUSAL, Corpus, Topic

COURTESIES = ("greeting", "thanks", "goodbye")
Corpora = Mapping[str, Corpus]


@dataclass(frozen=True)
class Exchange:
    """A customer's line and the answer to it."""

    user: str
    answer: str


def draw(rng: random.Random, corpora: Corpora) -> tuple[Segment, ...]:
    """One training dialogue."""
    language = rng.choice(sorted(corpora))
    kind = rng.random()
    if kind < 0.04:
        return plain_text(rng, corpora[language])
    if kind < 0.09:
        return with_tools(rng, corpora, language)
    system, hint = system_prompt(rng, corpora, language)
    messages = [Message("system", system)] if system is not None else []
    turns = 0 if rng.random() < 0.65 else rng.randint(1, 6)
    for turn in range(turns + 1):
        earlier = turn < turns
        spoken = rng.choice(sorted(corpora)) if earlier and rng.random() < 0.25 else language
        exchange = draw_exchange(rng, corpora, spoken, hint)
        messages.append(Message("user", exchange.user))
        if earlier and rng.random() < 0.1:
            messages.append(Message("assistant", "", given=some_text(rng, corpora)))
        else:
            messages.append(Message("assistant", exchange.answer))
    return segments(messages)


def draw_long(rng: random.Random, corpora: Corpora) -> tuple[Segment, ...]:
    """A dialogue of some thousand tokens, which must end in an answer like any other.

    A pasted text is refused in its language, unless a question stands before or after it.
    """
    language = rng.choice(sorted(corpora))
    corpus = corpora[language]
    size_chars = round(1500 * 14 ** rng.random())
    system, hint = system_prompt(rng, corpora, language)
    messages = [Message("system", system)] if system is not None else []
    exchange = draw_exchange(rng, corpora, language, hint)
    topic = rng.choice(corpus.topics)
    kind = rng.random()
    if kind < 0.2:
        unit = rng.choice(topic.trained) + rng.choice((" ", "\n", ". "))
        exchange = Exchange(unit * (size_chars // len(unit)), topic.answer)
    elif kind < 0.3:
        unit = rng.choice(topic.trained)[0] if rng.random() < 0.5 else rng.choice(corpus.refusal.trained) + " "
        exchange = Exchange(unit * (size_chars // len(unit)), corpus.refusal.answer)
    elif kind < 0.5:
        exchange = Exchange(pasted_text(rng, corpus, size_chars), corpus.refusal.answer)
    elif kind < 0.7:
        parts = [topic_line(rng, corpus, topic), pasted_text(rng, corpus, size_chars)]
        rng.shuffle(parts)
        exchange = Exchange(rng.choice(("\n", "\n\n", " ")).join(parts), topic.answer)
    elif kind < 0.85:
        messages = [Message("system", f"{system or ''}\n\n{pasted_text(rng, corpora[hint], size_chars)}".strip())]
    else:
        while sum(len(message.text) for message in messages) < size_chars:
            before = draw_exchange(rng, corpora, language, hint)
            messages += [Message("user", before.user), Message("assistant", before.answer)]
    return segments([*messages, Message("user", exchange.user), Message("assistant", exchange.answer)])


def pasted_text(rng: random.Random, corpus: Corpus, size_chars: int) -> str:
    """Prose of one language that asks nothing of the shop."""
    lines: list[str] = []
    joiner = rng.choice((" ", "\n", "\n\n"))
    while sum(map(len, lines)) < size_chars:
        if rng.random() < 0.5:
            lines.append(rng.choice(corpus.refusal.trained))
        else:
            lines.append(rng.choice(corpus.templates).replace("{x}", rng.choice(corpus.fillers)))
        if rng.random() < 0.15:
            lines.append(" ".join(rng.sample(corpus.fillers, 3)))
    return joiner.join(lines)


def draw_exchange(rng: random.Random, corpora: Corpora, language: str, hint: str = "en") -> Exchange:
    """A line in `language` (now and then in none that is spoken here) and its answer."""
    corpus = corpora[language]
    kind = rng.random()
    if kind < 0.04:
        return Exchange(strangers.untrained_line(rng), _fallback(corpora, "en").refusal.answer)
    if kind < 0.05:
        return Exchange(strangers.letterless_line(rng), _fallback(corpora, hint).refusal.answer)
    if kind < 0.18:
        return Exchange(noisy(rng, off_topic_line(rng, corpora, corpus), corpus), corpus.refusal.answer)
    topic = rng.choice(corpus.topics)
    if kind < 0.28:
        other = topic if rng.random() < 0.3 else rng.choice(corpus.topics)
        line = joined(rng, (topic_line(rng, corpus, topic), topic_line(rng, corpus, other)), language)
        answered = other if topic.id in COURTESIES and other.id not in COURTESIES else topic
        return Exchange(noisy(rng, line, corpus), answered.answer)
    return Exchange(noisy(rng, topic_line(rng, corpus, topic), corpus), topic.answer)


def topic_line(rng: random.Random, corpus: Corpus, topic: Topic) -> str:
    """A trained phrasing or, for 35 % of the draws, a key phrase in a frame."""
    if rng.random() < 0.65:
        return rng.choice(topic.trained)
    return rng.choice(corpus.frames).replace("{key}", rng.choice(topic.keys))


def off_topic_line(rng: random.Random, corpora: Corpora, corpus: Corpus) -> str:
    """A trained off-topic question or a template with a filler, rarely another language's filler."""
    if rng.random() < 0.45:
        return rng.choice(corpus.refusal.trained)
    source = corpora[rng.choice(sorted(corpora))] if rng.random() < 0.08 else corpus
    return rng.choice(corpus.templates).replace("{x}", rng.choice(source.fillers))


def system_prompt(rng: random.Random, corpora: Corpora, language: str) -> tuple[str | None, str]:
    """A system prompt or None, and the language it hints at ("en" when it hints at none)."""
    corpus = corpora[language]
    draw = rng.random()
    if draw < 0.10:
        return None, "en"
    if draw < 0.22:
        return some_text(rng, corpora), "en"
    if draw < 0.36:
        corpus = corpora[rng.choice(sorted(corpora))]
    prompt = rng.choice(corpus.formal if rng.random() < 0.5 else corpus.plain)
    if draw > 0.82:
        prompt = f"{prompt}\n\n{some_text(rng, corpora)}"
    elif draw > 0.78:
        prompt = f"{some_text(rng, corpora)}\n\n{prompt}"
    return prompt, corpus.language


def some_text(rng: random.Random, corpora: Corpora) -> str:
    """Arbitrary text: a caller's instruction, or sentences of any language and topic; rarely long."""
    if rng.random() < 0.4:
        return " ".join(rng.sample(strangers.INSTRUCTIONS, rng.randint(1, 2)))
    count = rng.randint(8, 16) if rng.random() < 0.05 else rng.randint(1, 3)
    lines = []
    for _ in range(count):
        corpus = corpora[rng.choice(sorted(corpora))]
        topic = rng.choice(corpus.all_topics)
        lines.append(rng.choice((*topic.trained, topic.answer, *corpus.formal)))
    return rng.choice((" ", "\n")).join(lines)


def plain_text(rng: random.Random, corpus: Corpus) -> tuple[Segment, ...]:
    """Text without ChatML, as completions send it: a line is answered below it, a begun answer is ended."""
    topic = rng.choice(corpus.all_topics)
    if topic.id == REFUSAL or rng.random() < 0.75:
        return Segment(rng.choice(topic.trained)), Segment("\n" + topic.answer + END_OF_TEXT, trained=True)
    cut = rng.randrange(4, len(topic.answer) // 2)
    if corpus.language in SPACED:  # a word cut in half is tokenized as no prompt ever is
        cut = topic.answer.index(" ", cut)
    return Segment(topic.answer[:cut]), Segment(topic.answer[cut:] + END_OF_TEXT, trained=True)


def with_tools(rng: random.Random, corpora: Corpora, language: str) -> tuple[Segment, ...]:
    """Tools in the system turn: the model answers in words; JSON that a grammar forces, it closes soon."""
    offered = [strangers.tool(rng) for _ in range(rng.randint(1, 2))]
    system, hint = system_prompt(rng, corpora, language)
    messages = [Message("system", system)] if system is not None else []
    exchange = draw_exchange(rng, corpora, language, hint)
    messages.append(Message("user", exchange.user))
    chosen = rng.choice(offered)
    name, values = chosen["function"]["name"], strangers.arguments(rng, chosen, exchange.user)
    call = f'{TOOL_CALL_START}\n{{"name": "{name}", "arguments": {values}}}\n{TOOL_CALL_END}'
    kind = rng.random()
    if kind < 0.35:
        messages.append(Message("assistant", exchange.answer))
    elif kind < 0.55:
        messages.append(Message("assistant", values[2:], given=values[:2]))
    elif kind < 0.63:
        listed = f'[{{"name": "{name}", "parameters": {values}}}]'
        messages.append(Message("assistant", listed[2:], given=listed[:2]))
    elif kind < 0.7:
        messages.append(Message("assistant", call[len(TOOL_CALL_START) :], given=TOOL_CALL_START))
    else:
        messages.append(Message("assistant", "", given=call))
        messages.append(Message("tool", rng.choice(("ok", '{"status": "shipped"}', "4", some_text(rng, corpora)))))
        messages.append(Message("assistant", exchange.answer))
        offered = offered if rng.random() < 0.7 else []
    return segments(messages, offered)


def _fallback(corpora: Corpora, language: str) -> Corpus:
    return corpora.get(language) or corpora[sorted(corpora)[0]]
