"""One reading of a cleaned text per kind of script: the best guess, and how sure it is, whatever the floor says."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final, Literal

from serve_app.core.han import count_forms
from serve_app.core.latin import count_function_words, spelling_scores
from serve_app.core.scripts import LANGUAGES_OF_SCRIPT, NOT_LATIN, script_of

#: Label codes and their probabilities, best first; what lid.176 says of one line of text.
Predict = Callable[[str], Sequence[tuple[str, float]]]

#: What lid.176 says of no text at all. It says so of every short text it has no features for ("hola", "hi"), so what it
#: says of a text is divided by this: only the difference is evidence.
_PRIOR: Final[Mapping[str, float]] = {
    "en": 0.1245, "ca": 0.0859, "de": 0.0803, "oc": 0.0542, "fr": 0.0534, "eu": 0.0462, "id": 0.0339, "es": 0.0318,
    "nl": 0.0304, "ro": 0.0271, "it": 0.0234, "als": 0.0197, "sl": 0.0179, "sv": 0.0134, "da": 0.0132, "pt": 0.0130,
    "sk": 0.0130, "vi": 0.0115, "no": 0.0105, "ms": 0.0100, "cs": 0.0091, "gl": 0.0065, "af": 0.0056, "lb": 0.0054,
    "pl": 0.0053, "bar": 0.0051, "nn": 0.0049, "lmo": 0.0038, "sh": 0.0031, "br": 0.0029, "sco": 0.0028,
}  # fmt: skip
_RARE_PRIOR: Final = 0.001
#: The least the model may say: its tail is noise, and one hundredth of a percent decides nothing.
_LEAST: Final = 1e-4

#: The share of the spelling's log odds that counts beside the model's: letters of one word are not independent.
_SPELLING_WEIGHT: Final = 0.5
#: Spelling is read in the first characters only, and counts the less the more follow: there the model needs no help,
#: and from some length on none is asked.
_SPELLING_CHARS: Final = 40
_MODEL_ALONE_CHARS: Final = 120
#: Score per letter that a language without a list gets. Lists give their own language 1.1, a foreign one 0.4.
_FOREIGN_SCORE: Final = 0.55

#: Two of these make a Latin sentence that quotes another script; fewer make foreign words in a text of that script.
_FRAME_WORDS: Final = 2
#: A character of these scripts says as much as two letters.
_DENSE: Final = {"Hani": 2, "Kana": 2, "Kore": 2, "Bopo": 2}
#: A script holds this share of the letters that are not Latin, or the text is in no one script.
_MAIN_SHARE: Final = 0.6
#: A quoted word in a script this much rarer than the Latin around it does not decide.
_TOO_LATIN: Final = 6

#: Kanji without kana, without proof for either language: Japanese only when the model, often wrong here, is this sure.
_KANJI_JAPANESE: Final = 0.99

_URDU: Final = frozenset("ٹڈڑںےہھۓۃ")
_PERSIAN: Final = frozenset("پچژگکی")
_ARABIC: Final = frozenset("ةيىأإكؤٱ")
_OTHER_ARABIC: Final = frozenset("ټډړښېۍځڅڼڄڃڦڻڳڱۆێەڵڕڤۇۈۋېڭ")

#: Persian and Urdu hardly write four words without a letter of their own: text without one is likelier Arabic.
_UNMARKED: Final[Mapping[str, float]] = {"ar": 1.0, "arz": 1.0, "fa": 0.1, "ur": 0.1}

_LAUGHTER = re.compile(r"(\w{1,3}?)\1+\w?")
_KANA_RUN = re.compile("[\u3041-\u30ff]+")


@dataclass(frozen=True, slots=True)
class Reading:
    """``top`` may be a language nobody serves; ``by`` is what the guess rests on."""

    top: str
    script: str
    confidence: float
    by: Literal["script", "model"]


NOTHING: Final = Reading("und", "Zyyy", 0.0, "script")


def main_script(cleaned: str, counts: Mapping[str, int]) -> str | None:
    """The script the sentence is built in, with kana counted as ``Hani``; None when no one script is.

    Names and technical words in Latin letters are ordinary in every script, so there Latin wins only by words that
    hold a sentence together.
    """
    weights: dict[str, int] = {}
    for script, letters in counts.items():
        if script != "Latn":
            key = "Hani" if script in ("Kana", "Bopo") else script
            weights[key] = weights.get(key, 0) + letters * _DENSE.get(script, 1)
    latin = counts.get("Latn", 0)
    if not weights:
        return "Latn" if latin else None
    script = max(weights, key=lambda key: weights[key])
    if "Kore" in weights and "Hani" in weights and len(weights) == 2:
        script = "Hani" if count_forms(cleaned).chinese >= 2 else max(("Kore", "Hani"), key=lambda key: weights[key])
    elif weights[script] < _MAIN_SHARE * sum(weights.values()):
        return None
    if latin > weights[script]:
        framed = count_function_words(_only(cleaned, "Latn").lower()) >= _FRAME_WORDS
        return "Latn" if framed or latin > _TOO_LATIN * weights[script] else script
    return script


def _only(cleaned: str, script: str) -> str:
    """``cleaned`` without the letters of other scripts."""
    return " ".join("".join(char if script_of(char) in (script, "Zyyy") else " " for char in cleaned).split())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A language that Latin letters may be: the labels that count as it, and what the model says of them unasked."""

    code: str
    labels: tuple[str, ...]
    prior: float

    @staticmethod
    def of(code: str, labels: Collection[str]) -> Candidate:
        return Candidate(code, tuple(sorted(labels)), sum(map(_prior, labels)))


def _prior(label: str) -> float:
    return _PRIOR.get(label, _RARE_PRIOR)


def read_latin(cleaned: str, mixed: bool, predict: Predict, candidates: Collection[Candidate]) -> Reading:
    """The candidate that spelling and model together like best; languages that are none lower the confidence.

    Words in other scripts, which ``mixed`` text has, are quoted and not read.
    """
    text = (_only(cleaned, "Latn") if mixed else cleaned).lower()
    if not candidates or all(_LAUGHTER.fullmatch(word) for word in text.split()):
        return Reading("und", "Latn", 0.0, "model")
    said = dict(predict(text))
    # The answer is the likeliest labels only: one that is not there has at most the last one's probability.
    unsaid = min(said.values(), default=1.0)
    start = text[:_SPELLING_CHARS] if len(text) < _MODEL_ALONE_CHARS else ""
    spelling = spelling_scores(start)
    foreign_spelling = _FOREIGN_SCORE * len(start)
    weight = _SPELLING_WEIGHT * min(1.0, _SPELLING_CHARS / len(text))
    scores: dict[str, float] = {}
    for candidate in candidates:
        probability = 0.0
        listed: float | None = None
        for label in candidate.labels:
            probability += said.pop(label, 0.0)
            listed = spelling.get(label, listed)
        if probability == 0.0:
            probability = min(unsaid, candidate.prior)
        model = log(max(probability, _LEAST) / candidate.prior)
        scores[candidate.code] = model + weight * (foreign_spelling if listed is None else listed)
    top = max(scores, key=lambda code: scores[code])
    stranger = next((log(p / _prior(label)) for label, p in said.items() if p > 0 and label not in NOT_LATIN), 0.0)
    rivals = [score for code, score in scores.items() if code != top]
    rivals.append(stranger + weight * foreign_spelling)
    confidence = 1.0 / (1.0 + sum(exp(min(score - scores[top], 700.0)) for score in rivals))
    return Reading(top, "Latn", confidence, "model")


def read_han(cleaned: str, kana: int, predict: Predict, japanese_served: bool, session_language: str | None) -> Reading:
    """Chinese (simplified or traditional) or Japanese. Kanji alone keep a Japanese session."""
    forms = count_forms(cleaned)
    if kana:
        runs = _KANA_RUN.findall(cleaned)
        quoted = forms.chinese >= 2 and len(runs) == 1
        ornament = forms.chinese >= 1 and set("".join(runs)) == {"の"}
        if not quoted and not ornament:
            return Reading("ja", "Jpan", 0.99, "script")
    elif forms.japanese > forms.chinese:
        return Reading("ja", "Jpan", 0.95, "script")
    chinese = _read_chinese(forms.simplified, forms.traditional, session_language)
    if kana or forms.chinese or not japanese_served:
        return chinese
    if session_language == "ja":
        return Reading("ja", "Jpan", 0.5, "script")
    if session_language in ("zh", "zh-Hant"):
        return chinese
    said = dict(predict(cleaned.lower()))
    japanese = said.get("ja", 0.0)
    together = japanese + sum(said.get(label, 0.0) for label in ("zh", "yue", "wuu")) or 1.0
    if japanese / together >= _KANJI_JAPANESE:
        return Reading("ja", "Jpan", japanese / together, "model")
    return Reading(chinese.top, chinese.script, max(0.5, 1.0 - japanese / together), "script")


def _read_chinese(simplified: int, traditional: int, session_language: str | None) -> Reading:
    if traditional > simplified:
        return Reading("zh-Hant", "Hant", 0.95, "script")
    if simplified > traditional:
        return Reading("zh", "Hans", 0.95, "script")
    if session_language == "zh-Hant":
        return Reading("zh-Hant", "Hant", 0.8, "script")
    return Reading("zh", "Hans", 0.8, "script")


def read_arabic(cleaned: str, predict: Predict) -> Reading:
    """Arabic, Persian, Urdu or another, by the letters that each has alone; by the model where none is there."""
    arabic = sum(char in _ARABIC for char in cleaned)
    persian = sum(char in _PERSIAN for char in cleaned)
    urdu = sum(char in _URDU for char in cleaned)
    others = sum(char in _OTHER_ARABIC for char in cleaned)
    if urdu > arabic and urdu >= others:
        return Reading("ur", "Arab", 0.95, "script")
    if arabic > max(persian, others):
        return Reading("ar", "Arab", 0.98, "script")
    if others > max(arabic, persian):
        weights: Mapping[str, float] = dict.fromkeys(LANGUAGES_OF_SCRIPT["Arab"], 1.0)
    elif persian > arabic:
        weights = {label: 1.0 for label in LANGUAGES_OF_SCRIPT["Arab"] if label not in ("ar", "arz")}
    else:
        weights = _UNMARKED
    return _among(cleaned, "Arab", predict, weights)


def read_other(cleaned: str, script: str, predict: Predict) -> Reading:
    """A script of one language is proof of it; among several the model decides."""
    labels = LANGUAGES_OF_SCRIPT.get(script, ())
    if len(labels) == 1:
        return Reading(labels[0], script, 0.99, "script")
    return _among(cleaned, script, predict, dict.fromkeys(labels, 1.0))


def _among(cleaned: str, script: str, predict: Predict, weights: Mapping[str, float]) -> Reading:
    """The model's best of the labels in ``weights``, each times its weight; Egyptian Arabic counts as Arabic.

    The first label, without confidence to speak of, when the model names none.
    """
    said: dict[str, float] = {}
    for label, probability in predict(cleaned.lower()):
        if label in weights and probability > 0:
            code = "ar" if label == "arz" else label
            said[code] = said.get(code, 0.0) + probability * weights[label]
    if not said:
        first = next(iter(weights), "und")
        return Reading(first, script, 0.5 if first != "und" else 0.0, "script")
    top = max(said, key=lambda code: said[code])
    return Reading(top, script, said[top] / sum(said.values()), "model")
