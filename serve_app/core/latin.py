"""Which Latin-script language a few words look like, by their spelling.

The model behind ``predict`` was trained on sentences: of ten characters it is wrong once in five. A small model of
spelling, learnt from ``latin_words``, is right where the other is not, and its log odds are added to the other's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from math import log
from typing import Final

from serve_app.core.latin_words import WORDS

#: Characters of a gram: the one that is judged and at most three before it.
_ORDER: Final = 4
#: Weight of a word by its place in the list: flat enough that rare words teach spelling too.
_RANK_OFFSET: Final = 5
_RANK_POWER: Final = 0.5
#: People leave accents out; such spellings count this much of the right ones.
_BARE_WEIGHT: Final = 0.2
#: How strongly a gram seen seldom leans on its shorter one, and the characters a language may use beyond those seen.
_LEAN: Final = 1.5
_UNSEEN_CHARS: Final = 20
#: What a whole word adds for the only language whose list has it: its letters alone do not tell it from a fragment.
_OWN_WORD: Final = 3.0
#: Words that hold a sentence together: this many from the top of each list.
_FUNCTION_WORDS: Final = 80

Grams = dict[str, dict[str, float]]


def bare(word: str) -> str:
    """``word`` without accents and marks, as people type it on the wrong keyboard."""
    letters = unicodedata.normalize("NFD", word)
    return "".join(char for char in letters if not unicodedata.combining(char)).replace("đ", "d")


def _grams(words: Iterable[str]) -> Grams:
    """Weighted counts of the next character after each context of at most three."""
    weights: dict[str, float] = {}
    for rank, word in enumerate(words):
        weight = (rank + _RANK_OFFSET) ** -_RANK_POWER
        weights[word] = weights.get(word, 0.0) + weight
        if (plain := bare(word)) != word:
            weights[plain] = weights.get(plain, 0.0) + weight * _BARE_WEIGHT
    scale = 1000.0 / sum(weights.values())
    grams: Grams = {}
    for word, weight in weights.items():
        padded = f" {word} "
        for end in range(1, len(padded)):
            for start in range(max(0, end - _ORDER + 1), end + 1):
                following = grams.setdefault(padded[start:end], {})
                following[padded[end]] = following.get(padded[end], 0.0) + weight * scale
    return grams


def _smooth(grams: Grams, seen: Iterable[str], alphabet: int) -> dict[str, float]:
    """Probability of the last character of every string of ``seen``, from shorter context to longer."""
    totals = {context: sum(following.values()) for context, following in grams.items()}
    probabilities: dict[str, float] = {}
    for gram in sorted(seen, key=len):
        context, char = gram[:-1], gram[-1]
        shorter = probabilities[gram[1:]] if len(gram) > 1 else 1.0 / alphabet
        following = grams.get(context)
        if following is None:
            probabilities[gram] = shorter
        else:
            lean = len(following) * _LEAN
            probabilities[gram] = (following.get(char, 0.0) + lean * shorter) / (totals[context] + lean)
    return probabilities


@cache
def _tables() -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    """The languages, and for each gram its log probability in each of them less that of letters thrown together."""
    languages = tuple(WORDS)
    counted = [_grams(WORDS[language].split()) for language in languages]
    seen = {context + char for grams in counted for context, following in grams.items() for char in following}
    alphabet = len({gram for gram in seen if len(gram) == 1}) + _UNSEEN_CHARS
    smoothed = [_smooth(grams, seen, alphabet) for grams in counted]
    table: dict[str, tuple[float, ...]] = {}
    for gram in seen:
        thrown = log(sum(probabilities[gram[-1]] for probabilities in smoothed) / len(smoothed))
        table[gram] = tuple(log(probabilities[gram]) - thrown for probabilities in smoothed)
    return languages, table


def spelling_scores(text: str) -> Mapping[str, float]:
    """Log likelihood of lower-case ``text`` in each language of ``WORDS`` against letters thrown together.

    Words of a language score about 1.1 for each letter, those of a related one 0.4 to 0.6, keyboard noise around zero.
    """
    languages, table = _tables()
    padded = f" {text} "
    found = [(0.0,) * len(languages)]
    for end in range(2, len(padded) + 1):
        for start in range(max(0, end - _ORDER), end):
            values = table.get(padded[start:end])
            if values is not None:
                found.append(values)
                break
    scores: dict[str, float] = dict(zip(languages, map(sum, zip(*found, strict=True)), strict=True))
    owners = _owners()
    for word in set(text.split()):
        if (owner := owners.get(word)) is not None:
            scores[owner] += _OWN_WORD
    return scores


@cache
def _owners() -> dict[str, str]:
    """The words, as written, that stand in one list alone, and whose they are."""
    owners: dict[str, str] = {}
    for language, words in WORDS.items():
        for word in set(words.split()):
            owners[word] = "" if word in owners else language
    return {word: owner for word, owner in owners.items() if owner}


@cache
def _function_words() -> frozenset[str]:
    return frozenset(
        form
        for words in WORDS.values()
        for word in words.split()[:_FUNCTION_WORDS]
        if len(word) > 1
        for form in (word, bare(word))
    )


def count_function_words(text: str) -> int:
    """How many different words of lower-case ``text`` hold sentences together in some language of ``WORDS``."""
    return len(_function_words().intersection(text.split()))
