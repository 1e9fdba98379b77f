"""Who asks when, where, in which language, and how much: built-in load, or traces of real services."""

from __future__ import annotations

import csv
import gzip
import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

#: Tokens against English, as in the shipped route table.
TOKEN_RATIO: Final = {
    "en": 1.0, "zh": 1.15, "zh-Hant": 1.25, "ja": 1.6, "ko": 1.8, "ar": 1.8, "id": 1.7, "vi": 1.6, "es": 1.7, "th": 2.9,
}  # fmt: skip
#: Languages of a part of the world by share. Only their ratios and where they are asked matter here.
LANGUAGES: Final = {
    "asia": {"zh": 0.4, "ja": 0.15, "ko": 0.1, "id": 0.1, "th": 0.05, "vi": 0.05, "en": 0.15},
    "europe": {"en": 0.6, "es": 0.25, "ar": 0.15},
    "americas": {"en": 0.7, "es": 0.3},
}
#: English tokens of an answer and of a turn's question: medians of log-normal lengths.
ANSWER_TOKENS: Final = 120
QUESTION_TOKENS: Final = 60
MOST_TOKENS: Final = 2048
#: What of a conversation a prompt may hold; older turns go.
MOST_CONTEXT: Final = 6000
#: Nobody asks again before the answer is there: tokens a second that it comes with.
READ_TOKENS_S: Final = 100.0
#: So many times the length of a session, load begins before it is looked at.
BEFORE_TURNS: Final = 3.0


@dataclass(slots=True)
class Request:
    """One request. ``entry`` is the number of the region where it comes in; ``shared_tokens`` of its prompt were in the
    prompt or answer of its session's last turn."""

    at_s: float
    entry: int
    language: str
    prompt_tokens: int
    output_tokens: int
    session: str | None = None
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """How sessions go: how many of the requests belong to one, how many turns it has, and how long a user thinks."""

    in_sessions: float = 0.5
    turns: float = 4.0
    think_s: float = 15.0


def steady(
    draw: random.Random,
    entries: Sequence[tuple[float, str]],
    requests: int,
    begin_s: float,
    duration_s: float,
    shape: Shape,
) -> Iterator[tuple[float, Request]]:
    """``requests`` over a time. ``entries`` are each region's share of users and its part of the world."""
    shares = [share for share, _ in entries]
    sessions = shape.in_sessions / shape.turns
    # So many arrivals make one request: those of a session are the first of several.
    whole = sessions + 1.0 - shape.in_sessions
    later: list[tuple[float, int, Request]] = []
    # Sessions have been going on before anybody looks.
    at_s, made = begin_s - BEFORE_TURNS * shape.turns * shape.think_s, 0
    for number in count():
        at_s += draw.expovariate(requests * whole / duration_s)
        while later and later[0][0] <= at_s:
            _, _, request = heapq.heappop(later)
            _follow(draw, later, request, shape)
            if request.at_s >= begin_s:
                yield request.at_s, request
                made += 1
                if made == requests:
                    return
        [entry] = draw.choices(range(len(entries)), shares)
        request = _turn(draw, at_s, entry, _pick(draw, LANGUAGES[entries[entry][1]]), 0)
        if draw.random() < sessions / whole:
            request.session = f"s{number}"
            _follow(draw, later, request, shape)
        if at_s >= begin_s:
            yield at_s, request
            made += 1
            if made == requests:
                return


def _follow(draw: random.Random, later: list[tuple[float, int, Request]], last: Request, shape: Shape) -> None:
    """Plans the next turn of a session, if there is one."""
    if draw.random() < 1.0 / shape.turns:
        return
    context = min(MOST_CONTEXT, last.prompt_tokens + last.output_tokens)
    took_s = last.output_tokens / READ_TOKENS_S + draw.expovariate(1.0 / shape.think_s)
    request = _turn(draw, last.at_s + took_s, last.entry, last.language, context)
    request.session = last.session
    heapq.heappush(later, (request.at_s, draw.getrandbits(62), request))


def _turn(draw: random.Random, at_s: float, entry: int, language: str, context: int) -> Request:
    ratio = TOKEN_RATIO[language]
    question = min(MOST_TOKENS, max(1, int(draw.lognormvariate(0.0, 0.6) * QUESTION_TOKENS * ratio)))
    answer = min(MOST_TOKENS, max(1, int(draw.lognormvariate(0.0, 0.6) * ANSWER_TOKENS * ratio)))
    return Request(at_s, entry, language, context + question, answer, None, context)


def _pick(draw: random.Random, shares: dict[str, float]) -> str:
    return draw.choices(list(shares), list(shares.values()))[0]


def day_rates(parts: Sequence[str], hour: float) -> list[float]:
    """How many ask in each part of the world at an hour of UTC, relative: two working peaks a day over a floor."""
    peaks = {"asia": (2.5, 6.5), "europe": (9.0, 13.5), "americas": (15.0, 19.5)}
    found = []
    for part in parts:
        value = 0.2
        for peak in peaks[part]:
            away = min(abs(hour - peak), 24.0 - abs(hour - peak))
            value += max(0.0, 1.0 - away / 4.0) * 0.6
        found.append(value)
    return found


def built_in_day(
    draw: random.Random, parts: Sequence[str], requests: int, duration_s: float, shape: Shape
) -> Iterator[tuple[float, Request]]:
    """A day of 24 parts in ``duration_s``, each with the load and the places of its hour."""
    rates = [day_rates(parts, hour + 0.5) for hour in range(24)]
    total = sum(map(sum, rates))
    for hour, rate in enumerate(rates):
        some = round(requests * sum(rate) / total)
        entries = list(zip(rate, parts, strict=True))
        begin_s = hour * duration_s / 24
        for at_s, request in steady(draw, entries, some, begin_s, duration_s / 24, shape):
            if request.session is not None:
                request.session = f"{hour}-{request.session}"
            yield at_s, request


def composed_day(
    file: Path, draw: random.Random, parts: Sequence[str], requests: int, duration_s: float
) -> Iterator[tuple[float, Request]]:
    """The composed day of three regions, squeezed into ``duration_s``; each line stands for several users.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it is not that trace.
    """
    rows = _rows(file, ("t_seconds_utc", "region", "session", "lang", "input_tokens", "output_tokens"))
    known = [r for r in rows if r["region"] in parts]
    copies = max(1, round(requests / max(1, len(known))))
    made = []
    for row in known:
        language = {"zh-Hans": "zh", "ms": "id"}.get(row["lang"], row["lang"])
        for copy in range(copies):
            at_s = (float(row["t_seconds_utc"]) + draw.uniform(0.0, 600.0)) % 86_400 * duration_s / 86_400
            entry, session = parts.index(row["region"]), f"{row['session']}-{copy}"
            prompt, output = int(row["input_tokens"]), max(1, int(row["output_tokens"]))
            made.append(Request(at_s, entry, language, prompt, output, session, int(row["shared_prefix_tokens"])))
    made.sort(key=lambda r: r.at_s)
    return ((r.at_s, r) for r in made[:requests])


def mooncake(file: Path, entries: Sequence[tuple[float, str]], draw: random.Random, requests: int) -> list[Request]:
    """Sessions of the Mooncake conversation trace at the times they had, each line for several users if need be.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it is not that trace.
    """
    rows = _rows(file, ("timestamp_ms", "session", "turn", "input_tokens", "output_tokens", "shared_prefix_tokens"))
    shares = [share for share, _ in entries]
    made = []
    for copy in range(max(1, round(requests / max(1, len(rows))))):
        homes: dict[str, tuple[int, float]] = {}
        for row in rows:
            home, late_s = homes.setdefault(
                row["session"], (draw.choices(range(len(shares)), shares)[0], draw.uniform(0.0, 10.0))
            )
            prompt, output = int(row["input_tokens"]), max(1, int(row["output_tokens"]))
            at_s, shared = int(row["timestamp_ms"]) / 1000 + late_s, int(row["shared_prefix_tokens"])
            made.append(Request(at_s, home, "en", prompt, output, f"{row['session']}-{copy}", shared))
    made.sort(key=lambda r: r.at_s)
    return made[:requests]


def _rows(file: Path, wanted: Sequence[str]) -> list[dict[str, str]]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in wanted if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{file}: no column {', '.join(missing)}; found: {', '.join(reader.fieldnames or ())}")
        return list(reader)
