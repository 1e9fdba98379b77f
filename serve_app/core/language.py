"""The language of what a user wrote: script first, then the model among the matrix's languages, then the session."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from serve_app.core.readings import (
    NOTHING,
    Candidate,
    Predict,
    Reading,
    main_script,
    read_arabic,
    read_han,
    read_latin,
    read_other,
)
from serve_app.core.scripts import NOT_LATIN, clean, count_scripts

__all__ = ["LanguageGuess", "Predict", "decide", "is_doubtful", "last_user_text"]

#: What the guess rests on: the writing, the model, the session it keeps, the caller's header, an agent that was asked.
Source = Literal["script", "model", "session", "header", "confirmed", "none"]

UNDETERMINED: Final = "und"
#: The languages, floor and equivalents of the shipped route table, for callers that have none.
LANGUAGES: Final = ("en", "zh", "zh-Hant", "ja", "ko", "ar", "id", "vi", "es", "th")
MIN_CONFIDENCE: Final = 0.5
EQUIVALENT: Final = (("id", "ms"),)
#: Under this, a guess that rests on the model does not move a session to another language.
MOVE_CONFIDENCE: Final = 0.6
#: The same for two words. One word never does: "wifi", "Paris", "lol" and "w" are said in every language.
MOVE_CONFIDENCE_TWO_WORDS: Final = 0.8
#: A text of more characters has words enough to be told by.
SHORT_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class LanguageGuess:
    """A language and what it rests on.

    ``language`` is a code of the route table, or ``und`` under the floor without a session. ``script`` is ISO 15924
    (``Latn Hans Hant Jpan Kore Arab Thai …``, ``Zyyy`` for no letters). ``confidence`` is in [0, 1] and is that of
    ``top``, the best guess before floor and session; ``top`` may be a language the table does not have.
    """

    language: str
    script: str
    confidence: float
    source: Source
    top: str = UNDETERMINED


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Which code of the route table a label counts as."""

    languages: frozenset[str]
    groups: frozenset[frozenset[str]]
    latin: tuple[Candidate, ...]

    @staticmethod
    @lru_cache(maxsize=16)
    def of(languages: frozenset[str], groups: frozenset[frozenset[str]]) -> _Matrix:
        """Cached, because a detector asks the same of every text."""
        plain = _Matrix(languages, groups, ())
        codes = sorted({plain.member(code) or code for code in languages - NOT_LATIN})
        return _Matrix(languages, groups, tuple(Candidate.of(code, plain.group(code)) for code in codes))

    def group(self, code: str) -> frozenset[str]:
        return next((group for group in self.groups if code in group), frozenset((code,)))

    def member(self, label: str) -> str | None:
        """One code for the whole of an equivalent group, so that its members do not compete."""
        found = self.languages & self.group(label)
        if found:
            return min(found)
        if label == "zh-Hant" and "zh" in self.languages:
            return "zh"
        if label == "zh" and "zh-Hant" in self.languages:
            return "zh-Hant"
        return None


def decide(
    text: str,
    predict: Predict,
    session_language: str | None,
    *,
    languages: Collection[str] = LANGUAGES,
    min_confidence: float = MIN_CONFIDENCE,
    equivalent: Iterable[Collection[str]] = EQUIVALENT,
) -> LanguageGuess:
    """The language of ``text`` among ``languages``; never raises, whatever the string.

    ``predict`` is given one clean line in lower case, and only where the script does not decide. A guess under
    ``min_confidence``, or one of the model that is not sure enough to move the session, keeps
    ``session_language`` (when the table has it); without a session the first is ``und``.
    """
    matrix = _Matrix.of(frozenset(languages), frozenset(frozenset(group) for group in equivalent))
    session = session_language if session_language in matrix.languages else None
    cleaned = clean(text)
    reading = _read(cleaned, predict, session, matrix)
    return _settle(reading, session, matrix, min_confidence, _move_floor(cleaned, reading))


def _read(cleaned: str, predict: Predict, session: str | None, matrix: _Matrix) -> Reading:
    counts = count_scripts(cleaned)
    script = main_script(cleaned, counts)
    if script is None:
        return NOTHING
    if script == "Latn":
        return read_latin(cleaned, len(counts) > 1, predict, matrix.latin)
    if script == "Hani":
        return read_han(cleaned, counts.get("Kana", 0), predict, "ja" in matrix.languages, session)
    if script == "Arab":
        return read_arabic(cleaned, predict)
    return read_other(cleaned, script, predict)


def _move_floor(cleaned: str, reading: Reading) -> float:
    """The confidence from which the model's guess may move a live session: out of reach for one word in Latin letters,
    which people of every script mix in.
    """
    if reading.script != "Latn":
        return MOVE_CONFIDENCE
    words = sum(any(c.isalpha() for c in word) for word in cleaned.split())
    return MOVE_CONFIDENCE if words > 2 else MOVE_CONFIDENCE_TWO_WORDS if words == 2 else math.inf


def _settle(
    reading: Reading, session: str | None, matrix: _Matrix, min_confidence: float, move_floor: float
) -> LanguageGuess:
    """Floor, hysteresis and equivalents over a reading."""
    language = matrix.member(reading.top)
    guess = LanguageGuess(language or UNDETERMINED, reading.script, reading.confidence, reading.by, reading.top)
    if language is None or reading.confidence < min_confidence:
        if session is not None:
            return replace(guess, language=session, source="session")
        return replace(guess, language=UNDETERMINED, source="none")
    if session is None:
        return guess
    if session in matrix.group(language):
        return replace(guess, language=session)
    if reading.by == "model" and reading.confidence < move_floor:
        return replace(guess, language=session, source="session")
    return guess


def is_doubtful(guess: LanguageGuess, text: str, session_language: str | None, min_confidence: float) -> bool:
    """Whether it is worth to ask somebody: for few words that no session, caller or script decides, and whose guess is
    not sure. What is surely in a language that the table does not have is in no doubt.
    """
    if session_language is not None or guess.source not in ("model", "none") or guess.script == "Zyyy":
        return False
    return guess.confidence < max(min_confidence, MOVE_CONFIDENCE) and 0 < len(clean(text)) <= SHORT_CHARS


def last_user_text(messages: object) -> str:
    """Text of the last user turn of OpenAI ``messages``; the text parts joined by line breaks; ``""`` when it has none.

    Never raises: what has not the shape of a message is not one, and an image says nothing about a language.
    """
    if not isinstance(messages, (list, tuple)):
        return ""
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return _text_of(message.get("content"))
    return ""


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        return ""
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in ("text", "input_text") else part
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)
