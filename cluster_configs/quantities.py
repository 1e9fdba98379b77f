"""Durations and sizes as people write them. A unit is required: everyone reads a bare number differently."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from cluster_configs.faults import shown

_MS_PER: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES_PER: Final = {"Ti": 1 << 40, "Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10}

#: Longer than any limit that makes sense, shorter than any number that loses precision as a float.
LONGEST_MS: Final = 366 * 24 * _MS_PER["h"]
LARGEST_BYTES: Final = 1 << 50

_NUMBER: Final = r"\d{1,15}(?:\.\d{1,10})?"
_DURATION: Final = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _MS_PER), re.ASCII)
_SIZE: Final = re.compile(rf"({_NUMBER})(Ti|Gi|Mi|Ki)", re.ASCII)
_BARE: Final = re.compile(r"[-+]?\d+(?:\.\d+)?", re.ASCII)
_LOOSE_SIZE: Final = re.compile(rf"({_NUMBER})\s*([kmgt])(?:i?b?)", re.ASCII | re.IGNORECASE)

DURATIONS_ALLOWED: Final = "a duration such as 250ms, 5s, 30m or 1h30m"
SIZES_ALLOWED: Final = "a size such as 512Mi or 24Gi"


class QuantityError(ValueError):
    """The text is no such quantity; the message names the value and what is allowed."""


def is_duration(text: str) -> bool:
    """Whether ``text`` has the form of a duration, whatever its value."""
    return bool(text) and _DURATION.fullmatch(text) is not None


def is_size(text: str) -> bool:
    """Whether ``text`` has the form of a size, whatever its value."""
    return _SIZE.fullmatch(text) is not None


def parse_duration_s(text: str) -> float:
    """Seconds of ``250ms``, ``5s``, ``30m``, ``1h30m``: whole milliseconds, more than 0, at most 366 days.

    Raises:
        QuantityError: no unit, a size, units out of order, 0, negative, finer than 1 ms, or too long.
    """
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        raise QuantityError(_not_a_duration(text))
    # The groups stand in the order of _MS_PER.
    total_ms = sum((Decimal(n) * ms for n, ms in zip(found.groups(), _MS_PER.values(), strict=True) if n), Decimal(0))
    if total_ms <= 0:
        raise QuantityError(f"{shown(text)} is not more than 0; allowed: {DURATIONS_ALLOWED}")
    if total_ms > LONGEST_MS:
        longest = format_duration(LONGEST_MS / 1000)
        raise QuantityError(f"{shown(text)} is too long; allowed: up to {longest}")
    if total_ms != int(total_ms):
        raise QuantityError(f"{shown(text)} is finer than a millisecond; allowed: {DURATIONS_ALLOWED}")
    return int(total_ms) / 1000


def parse_size_bytes(text: str) -> int:
    """Bytes of ``512Mi``, ``24Gi``, ``1.5Ti``: whole bytes, more than 0, at most 1024Ti.

    Raises:
        QuantityError: no unit, a decimal unit, a duration, 0, negative, a part of a byte, or too large.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise QuantityError(_not_a_size(text))
    total = Decimal(found[1]) * _BYTES_PER[found[2]]
    if total <= 0:
        raise QuantityError(f"{shown(text)} is not more than 0; allowed: {SIZES_ALLOWED}")
    if total > LARGEST_BYTES:
        raise QuantityError(f"{shown(text)} is too large; allowed: up to {format_size(LARGEST_BYTES)}")
    if total != int(total):
        raise QuantityError(f"{shown(text)} is no whole number of bytes; allowed: {SIZES_ALLOWED}")
    return int(total)


def format_duration(seconds: float) -> str:
    """Text that :func:`parse_duration_s` reads back as exactly ``seconds`` (whole milliseconds)."""
    rest = round(seconds * 1000)
    parts = []
    for unit, ms in _MS_PER.items():
        count, rest = divmod(rest, ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_size(size_bytes: int) -> str:
    """Text that :func:`parse_size_bytes` reads back as exactly ``size_bytes``, in the largest unit that fits."""
    for unit, count in _BYTES_PER.items():
        if size_bytes % count == 0:
            return f"{size_bytes // count}{unit}"
    # A 1024th has ten decimals, so this is exact.
    return f"{(Decimal(size_bytes) / 1024).normalize():f}Ki"


def _not_a_duration(text: str) -> str:
    value = shown(text)
    if _BARE.fullmatch(text):
        if text.startswith("-"):
            return f"{value} is negative and has no unit; allowed: {DURATIONS_ALLOWED}"
        number = text if len(text) <= 20 else "N"
        return f"{value} has no unit: write {number}ms, {number}s or {number}m, whichever is meant"
    if text.startswith("-") and is_duration(text[1:]):
        return f"{value} is negative; allowed: {DURATIONS_ALLOWED}"
    if is_size(text):
        return f"{value} is a size; allowed: {DURATIONS_ALLOWED}"
    if is_duration(text.replace(" ", "").lower()):
        return f"{value}: write it in small letters without spaces; allowed: {DURATIONS_ALLOWED}"
    return f"{value} is no duration; allowed: {DURATIONS_ALLOWED}, units h, m, s, ms in this order"


def _not_a_size(text: str) -> str:
    value = shown(text)
    if _BARE.fullmatch(text):
        if text.startswith("-"):
            return f"{value} is negative and has no unit; allowed: {SIZES_ALLOWED}"
        number = text if len(text) <= 20 else "N"
        return f"{value} has no unit: write {number}Mi or {number}Gi, whichever is meant"
    if text.startswith("-") and is_size(text[1:]):
        return f"{value} is negative; allowed: {SIZES_ALLOWED}"
    if is_duration(text):
        return f"{value} is a duration; allowed: {SIZES_ALLOWED}"
    loose = _LOOSE_SIZE.fullmatch(text)
    if loose is not None:
        meant = f"{loose[1]}{loose[2].upper()}i"
        return f"{value}: units are powers of 1024: write {meant}; allowed: {SIZES_ALLOWED}"
    return f"{value} is no size; allowed: {SIZES_ALLOWED}, units Ki, Mi, Gi, Ti"
