"""Which scripts a message is written in, after everything that says nothing about its language is gone."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from functools import lru_cache
from typing import Final

#: Read this much of a message before cleaning (a pasted log must not cost time), and judge this much of the rest.
RAW_CHARS: Final = 2000
#: White space before a text is looked past so far.
BLANK_CHARS: Final = 100_000
READ_CHARS: Final = 200
#: The text that is judged may be this many times as long before its spaces and signs are gone.
_SPACED: Final = 4

_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_FENCED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,200}`", re.DOTALL)
#: A line of code closes or opens something and has operators; prose that ends in a semicolon has none.
_CODE_LINE = re.compile(r"^(?=[^\n]*[=(){}\[\]<>*])[^\n]*[;{}][ \t]*$", re.MULTILINE)
_ADDRESS = re.compile(r"(?:https?://|www\.)[!-~]+|[\w.+-]+@[\w-]+\.[\w.-]+", re.IGNORECASE)
#: What marks a run of visible ASCII as an identifier, a path, an assignment, a call or a version, and no word.
#: It starts with one class, so that a search runs through prose at the speed of a character table.
_CODE_MARK = re.compile(
    r"[_{}<>=|\\^~$#@\[\](:/.A-Z0-9]"
    r"(?:(?<=[_{}<>=|\\^~$#@\[\]])|(?<=\w\()|(?<=::)|(?<=/)[\w.-]*/|(?<=\w\.)[a-z0-9]"
    r"|(?<=[a-z][A-Z])|(?<=[A-Za-z][0-9])|(?<=[0-9])[A-Za-z])",
    re.ASCII,
)
_ASCII_RUN = re.compile(r"[!-~]+")
_NO_LETTER = re.compile(r"[\W\d_]+")
#: ``\w`` leaves out signs that words need: vowel signs and virama of Indic and Thai text, combining accents.
_NO_WORD = re.compile(r"[^\w\u0300-\u036f\u0610-\u065f\u0900-\u0dff\u0e31-\u0e4e\u0eb1-\u0ecd']+|[\d_]+")
_ASCII_TO_WORDS: Final = {code: " " for code in range(128) if not (chr(code).isalpha() or chr(code) == "'")}
_QUOTE = re.compile(r"(?<!\w)'+|'+(?!\w)")

# First code point of each block, and its script; a block lasts until the next one starts.
_BLOCKS: Final[tuple[tuple[int, str], ...]] = (
    (0x0000, "Zyyy"), (0x0041, "Latn"), (0x005B, "Zyyy"), (0x0061, "Latn"), (0x007B, "Zyyy"), (0x00AA, "Latn"),
    (0x00AB, "Zyyy"), (0x00BA, "Latn"), (0x00BB, "Zyyy"), (0x00C0, "Latn"), (0x00D7, "Zyyy"), (0x00D8, "Latn"),
    (0x00F7, "Zyyy"), (0x00F8, "Latn"), (0x0250, "Zyyy"), (0x0370, "Grek"), (0x0400, "Cyrl"), (0x0530, "Armn"),
    (0x0590, "Hebr"), (0x0600, "Arab"), (0x0700, "Zyyy"), (0x0750, "Arab"), (0x0780, "Thaa"), (0x07C0, "Zyyy"),
    (0x08A0, "Arab"), (0x0900, "Deva"), (0x0980, "Beng"), (0x0A00, "Guru"), (0x0A80, "Gujr"), (0x0B00, "Orya"),
    (0x0B80, "Taml"), (0x0C00, "Telu"), (0x0C80, "Knda"), (0x0D00, "Mlym"), (0x0D80, "Sinh"), (0x0E00, "Thai"),
    (0x0E80, "Laoo"), (0x0F00, "Tibt"), (0x1000, "Mymr"), (0x10A0, "Geor"), (0x1100, "Kore"), (0x1200, "Ethi"),
    (0x13A0, "Zyyy"), (0x1780, "Khmr"), (0x1800, "Zyyy"), (0x1E00, "Latn"), (0x1F00, "Grek"), (0x2000, "Zyyy"),
    (0x2E80, "Hani"), (0x2FE0, "Zyyy"), (0x3005, "Hani"), (0x3008, "Zyyy"), (0x3041, "Kana"), (0x3099, "Zyyy"),
    (0x309D, "Kana"), (0x30A0, "Zyyy"), (0x30A1, "Kana"), (0x30FB, "Zyyy"), (0x30FD, "Kana"), (0x3100, "Bopo"),
    (0x3130, "Kore"), (0x3190, "Zyyy"), (0x31F0, "Kana"), (0x3200, "Zyyy"), (0x3400, "Hani"), (0x4DC0, "Zyyy"),
    (0x4E00, "Hani"), (0xA000, "Zyyy"), (0xA720, "Latn"), (0xA800, "Zyyy"), (0xA960, "Kore"), (0xA980, "Zyyy"),
    (0xAC00, "Kore"), (0xD7FC, "Zyyy"), (0xF900, "Hani"), (0xFB00, "Latn"), (0xFB07, "Zyyy"), (0xFB50, "Arab"),
    (0xFE00, "Zyyy"), (0xFE70, "Arab"), (0xFEFF, "Zyyy"), (0xFF66, "Kana"), (0xFFA0, "Kore"), (0xFFE0, "Zyyy"),
    (0x20000, "Hani"), (0x32000, "Zyyy"),
)  # fmt: skip
_STARTS: Final = [start for start, _ in _BLOCKS]

#: Languages of the model's labels that are written in each script; Latin takes every other label.
LANGUAGES_OF_SCRIPT: Final[dict[str, tuple[str, ...]]] = {
    "Arab": ("ar", "fa", "ur", "arz", "ps", "sd", "ug", "ckb", "azb", "pnb", "mzn", "lrc"),
    "Armn": ("hy",),
    "Beng": ("bn", "as", "bpy"),
    "Cyrl": (
        "ru", "uk", "bg", "sr", "be", "mk", "kk", "ky", "tg", "mn", "tt", "ba", "cv", "os", "ce", "av", "sah",
        "kv", "krc", "lez", "mhr", "mrj", "myv", "rue", "tyv", "bxr", "xal",
    ),
    "Deva": ("hi", "mr", "ne", "sa", "bh", "gom", "mai", "new", "dty"),
    "Ethi": ("am",),
    "Geor": ("ka", "xmf"),
    "Grek": ("el",),
    "Gujr": ("gu",),
    "Guru": ("pa",),
    "Hebr": ("he", "yi"),
    "Khmr": ("km",),
    "Knda": ("kn",),
    "Kore": ("ko",),
    "Laoo": ("lo",),
    "Mlym": ("ml",),
    "Mymr": ("my",),
    "Orya": ("or",),
    "Sinh": ("si",),
    "Taml": ("ta",),
    "Telu": ("te",),
    "Thaa": ("dv",),
    "Thai": ("th",),
    "Tibt": ("bo",),
    "Hani": ("zh", "zh-Hant", "ja", "yue", "wuu"),
}  # fmt: skip
NOT_LATIN: Final = frozenset(code for codes in LANGUAGES_OF_SCRIPT.values() for code in codes)


@lru_cache(maxsize=4096)
def script_of(char: str) -> str:
    """Script of one character (ISO 15924; kana is ``Kana``, Han ``Hani``); ``Zyyy`` when it belongs to none."""
    return _BLOCKS[bisect_right(_STARTS, ord(char)) - 1][1]


def start(text: str, most_chars: int) -> str:
    """The first characters of a text that are not white space before it: what is pasted may begin with much of it."""
    return text[:BLANK_CHARS].lstrip()[:most_chars]


def clean(text: str) -> str:
    """The words of the start of ``text``: at most ``READ_CHARS`` characters, single spaces, no line break.

    Gone are addresses, code, digits, punctuation, emoji, invisible characters, NUL and lone surrogates, none of which
    belongs to a language and all of which the model reads as one. Compatibility forms (full-width letters, half-width
    kana, Arabic presentation forms, decomposed accents) become their plain ones. Case stays.
    """
    text = start(text, RAW_CHARS)
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)[:RAW_CHARS]
    if "`" in text:
        text = _FENCED.sub(" ", text)
    if ";" in text or "{" in text or "}" in text:
        text = _CODE_LINE.sub(" ", text)
    if "@" in text or "://" in text or "www." in text.lower():
        text = _ADDRESS.sub(" ", text)
    if _CODE_MARK.search(text):
        text = _ASCII_RUN.sub(_drop_code, text)
    text = text[: _SPACED * READ_CHARS].replace("’", "'")
    text = text.translate(_ASCII_TO_WORDS) if text.isascii() else _NO_WORD.sub(" ", _UNREADABLE.sub(" ", text))
    if "'" in text:
        text = _QUOTE.sub(" ", text)
    text = " ".join(text.split())
    return text[:READ_CHARS].rstrip()


def _drop_code(run: re.Match[str]) -> str:
    return " " if _CODE_MARK.search(run[0]) else run[0]


def count_scripts(cleaned: str) -> dict[str, int]:
    """Letters per script in text that ``clean`` returned, without the ``Zyyy`` ones."""
    if cleaned.isascii():
        letters = len(_NO_LETTER.sub("", cleaned))
        return {"Latn": letters} if letters else {}
    counts = Counter(map(script_of, cleaned))
    del counts["Zyyy"]
    return counts
