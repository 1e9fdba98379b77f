"""Text as people see it, in bounded bytes: no character of any script is cut in two."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Joins what stands beside it to one character.
_JOINER: Final = "\u200d"
#: No writing needs as many code points for one character; beyond it a text is only cut between code points.
_LONGEST: Final = 32
_ELLIPSIS: Final = "…"


def clean_text(text: str) -> str:
    """Text that UTF-8 can carry: a lone surrogate (a string cut inside an emoji) becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_added(char: str) -> bool:
    """Whether a code point belongs to the one before it: an accent, a vowel sign, a skin colour, a joiner, a tag, or
    the later part of a Hangul syllable.
    """
    return (
        unicodedata.category(char) in ("Mn", "Mc", "Me")
        or char == _JOINER
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or "\u1160" <= char <= "\u11ff"
    )


def _splits(text: str, at: int) -> bool:
    """Whether a cut before ``at`` would part what people see as one character."""
    before, after = text[at - 1], text[at]
    if _is_added(after) or before == _JOINER or (before == "\r" and after == "\n"):
        return True
    if not (_is_flag(before) and _is_flag(after)):
        return False
    start = at
    while start > 0 and at - start < _LONGEST and _is_flag(text[start - 1]):
        start -= 1
    return (at - start) % 2 == 1


def head(text: str, most_bytes: int) -> str:
    """The longest beginning of ``text`` that has at most ``most_bytes`` in UTF-8 and ends between two characters.

    ``text`` is clean. Where one character alone is larger than the limit, nothing is left of it.
    """
    raw = text.encode("utf-8")
    if len(raw) <= most_bytes:
        return text
    at = len(raw[: max(0, most_bytes)].decode("utf-8", "ignore"))
    end = at
    while end > 0 and at - end < _LONGEST and _splits(text, end):
        end -= 1
    return text[: at if at - end == _LONGEST else end]


def shorten(text: str, most_bytes: int) -> str:
    """``text``, or its beginning with an ellipsis, in at most ``most_bytes`` of UTF-8."""
    if len(text.encode("utf-8")) <= most_bytes:
        return text
    return head(text, most_bytes - len(_ELLIPSIS.encode())).rstrip() + _ELLIPSIS if most_bytes >= 3 else ""
