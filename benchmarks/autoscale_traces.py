"""Load for the autoscaling benchmark: traces of real services, and made-up ones with the same statistics."""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
#: From here on a trace has a day's swing and is held to the aim.
DAY_LONG_S: Final = 12 * HOUR_S

#: Arrivals of a rate that is known every ten minutes swing from minute to minute around it, as the Azure conversation
#: hour does around its own mean: standard deviation of the logarithm, and how much a minute keeps of the last one.
MINUTE_S: Final = 60.0
MINUTE_SD: Final = 0.09
MINUTE_KEPT: Final = 0.35
#: The composed day has a line every six seconds only, for many users: in shorter steps its rates would be mostly noise.
COMPOSED_STEP_S: Final = 1800.0


class TraceError(Exception):
    """A trace cannot be read; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a request: log-normal, by median and standard deviation of the logarithm, cut at ``most``."""

    prompt: float
    prompt_sd: float
    output: float
    output_sd: float
    most: int = 8192

    def draw(self, chance: random.Random) -> tuple[int, int]:
        prompt = self.prompt * math.exp(chance.gauss(0.0, self.prompt_sd))
        output = self.output * math.exp(chance.gauss(0.0, self.output_sd))
        return min(self.most, max(1, round(prompt))), min(self.most, max(1, round(output)))


#: Fits of the Azure traces of 2023, and of the composed day without the tokens that a turn shares with the one before.
CONVERSATION: Final = Sizes(760.0, 0.99, 151.0, 0.86)
CODE: Final = Sizes(1095.0, 1.36, 16.3, 0.85)
COMPOSED: Final = Sizes(760.0, 0.99, 161.0, 1.0)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by time: seconds since the start, tokens of the prompt that are not cached, tokens of the answer."""

    name: str
    span_s: float
    at_s: Sequence[float]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]

    def draw(self, chance: random.Random) -> tuple[int, int]:
        """Tokens of one of its requests."""
        place = chance.randrange(len(self.at_s))
        return self.prompt_tokens[place], self.output_tokens[place]


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast requests come, relative, in steps of ``step_s``, and the requests they are drawn from.

    How many of them a replica can do is not known here: whoever sizes the load turns this into a :class:`Trace`.
    ``sizes`` is a distribution, or requests of a real trace.
    """

    name: str
    step_s: float
    relative: Sequence[float]
    sizes: Sizes | Sequence[tuple[int, int]]
    minute_sd: float = MINUTE_SD

    @property
    def span_s(self) -> float:
        return self.step_s * len(self.relative)

    def draw(self, chance: random.Random) -> tuple[int, int]:
        return self.sizes.draw(chance) if isinstance(self.sizes, Sizes) else chance.choice(self.sizes)

    def trace(self, mean_rps: float, seed: int) -> Trace:
        """Poisson arrivals of ``mean_rps`` over the whole span, their rate linear between the middles of steps."""
        chance = random.Random(f"{seed}/{self.name}")
        scale = mean_rps * len(self.relative) / sum(self.relative)
        at_s, prompts, outputs = [], [], []
        swing = 0.0
        for minute in range(round(self.span_s / MINUTE_S)):
            begin_s = minute * MINUTE_S
            swing = MINUTE_KEPT * swing + math.sqrt(1 - MINUTE_KEPT**2) * chance.gauss(0.0, self.minute_sd)
            # The mean of a log-normal is above its median.
            rps = scale * self.at(begin_s + MINUTE_S / 2) * math.exp(swing - self.minute_sd**2 / 2)
            for when_s in _poisson(chance, rps, begin_s, MINUTE_S):
                prompt, output = self.draw(chance)
                at_s.append(when_s)
                prompts.append(prompt)
                outputs.append(output)
        return Trace(self.name, self.span_s, at_s, prompts, outputs)

    def at(self, now_s: float) -> float:
        """The relative rate at a time; a square wave, which has no minute swing, stays square."""
        if not self.minute_sd:
            return self.relative[min(len(self.relative) - 1, int(now_s / self.step_s))]
        place = min(max(now_s / self.step_s - 0.5, 0.0), len(self.relative) - 1.0)
        low = int(place)
        high = min(low + 1, len(self.relative) - 1)
        return self.relative[low] + (self.relative[high] - self.relative[low]) * (place - low)


def _poisson(chance: random.Random, rps: float, begin_s: float, span_s: float) -> Iterator[float]:
    at_s = begin_s
    while rps > 0.0:
        at_s += chance.expovariate(rps)
        if at_s >= begin_s + span_s:
            return
        yield at_s


def square_wave() -> Rates:
    """Four times a day three quiet hours, and three with five times their load; both edges are vertical."""
    return Rates("square_wave", 3 * HOUR_S, (1.0, 5.0) * 4, CONVERSATION, minute_sd=0.0)


def built_in(seed: int) -> list[Trace | Rates]:
    """Load without any file: an hour of conversations, an hour of code, a day of three regions, a day of a service."""
    chance = random.Random(f"{seed}/built-in")
    hour = [1.0 + 0.3 * math.sin(math.pi * minute / 60) for minute in range(60)]
    conversation = Rates("like_azure_conv", MINUTE_S, hour, CONVERSATION).trace(5.5, seed)
    return [
        conversation,
        _code_hour(chance),
        Rates("like_composed_day", HOUR_S, [_day_rate(hour + 0.5) for hour in range(24)], COMPOSED),
        Rates("like_servegen", 600.0, _service_day(chance), CONVERSATION),
        square_wave(),
    ]


def _code_hour(chance: random.Random) -> Trace:
    """Editors ask in bursts of 17 s with 43 s of silence between them, both exponential, at 9 requests a second."""
    at_s, prompts, outputs, begin_s = [], [], [], 0.0
    while begin_s < HOUR_S:
        span_s = chance.expovariate(1 / 17.0)
        for when_s in _poisson(chance, 9.0 * chance.lognormvariate(-0.125, 0.5), begin_s, span_s):
            if when_s < HOUR_S:
                prompt, output = CODE.draw(chance)
                at_s.append(when_s)
                prompts.append(prompt)
                outputs.append(output)
        begin_s += span_s + chance.expovariate(1 / 43.0)
    return Trace("like_azure_code", HOUR_S, at_s, prompts, outputs)


def _day_rate(hour: float) -> float:
    """Two working peaks of each of three parts of the world over a floor; together they swing by a factor of two."""
    value = 0.6
    for peak, height in ((2.5, 0.25), (6.5, 0.3), (9.0, 0.35), (13.5, 0.75), (15.0, 0.35), (19.5, 0.7)):
        away = min(abs(hour - peak), 24.0 - abs(hour - peak))
        value += max(0.0, 1.0 - away / 4.0) * height
    return value


def _service_day(chance: random.Random) -> list[float]:
    """Ten-minute rates of a service: a slow day between 0.6 and 1.4, steps that keep 0.8 of the last with 12 % of
    noise, and now and then a batch of some client that doubles the load for half an hour to two hours."""
    rates, swing, batch, left = [], 0.0, 0.0, 0
    for step in range(144):
        swing = 0.8 * swing + chance.gauss(0.0, 0.12)
        if not left and chance.random() < 0.03:
            batch, left = chance.uniform(0.5, 1.2), chance.randint(3, 12)
        left = max(0, left - 1)
        slow = 1.0 + 0.4 * math.sin(2 * math.pi * (step / 144 - 0.3))
        rates.append((slow + (batch if left else 0.0)) * math.exp(swing))
    return rates


def from_folder(folder: Path, seed: int) -> list[Trace | Rates]:
    """Every trace of a folder (or of its folder ``traces``) that is known by its name, and the square wave.

    Raises:
        TraceError: when a file is not what its name says, or none is there.
    """
    here = folder / "traces" if (folder / "traces").is_dir() else folder
    found: list[Trace | Rates] = []
    conversation = _file(here, "AzureLLMInferenceTrace_conv.csv")
    if conversation:
        found.append(_azure("azure_conv", conversation))
    if code := _file(here, "AzureLLMInferenceTrace_code.csv"):
        found.append(_azure("azure_code", code))
    if mooncake := _file(here, "mooncake_conversation_sessions_derived.csv"):
        found.append(_mooncake(mooncake))
    if composed := _file(here, "composed_3region_day.csv"):
        found.append(_composed(composed))
    if servegen := _file(here, "servegen_rate_10min.csv"):
        like = found[0] if conversation and isinstance(found[0], Trace) else None
        sizes = list(zip(like.prompt_tokens, like.output_tokens, strict=True)) if like else CONVERSATION
        found += _servegen(servegen, sizes)
    if not found:
        raise TraceError(f"{here}: no trace that is known; see benchmarks/README.md for their names")
    return [*found, square_wave()]


#: Models of the ServeGen trace that are replayed, the first day of each: a chat service and a reasoning one.
SERVEGEN: Final[Mapping[str, str]] = {"language/m-large": "servegen_m-large", "reason/deepseek-r1": "servegen_r1"}


def _servegen(file: Path, sizes: Sizes | Sequence[tuple[int, int]]) -> list[Rates]:
    """Rates every ten minutes. The file has no sizes: those of conversations are used."""
    rates: dict[str, list[float]] = {model: [] for model in SERVEGEN}
    for row in _rows(file, ("model", "t_seconds", "total_req_per_s")):
        if row["model"] in rates and float(row["t_seconds"]) < DAY_S:
            rates[row["model"]].append(float(row["total_req_per_s"]))
    return [Rates(SERVEGEN[model], 600.0, found, sizes) for model, found in rates.items() if found]


def _azure(name: str, file: Path) -> Trace:
    rows = _rows(file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
    # Seven digits after the point, of which Python reads six.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return _sorted(
        name,
        [
            (at - times[0], int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for at, row in zip(times, rows, strict=True)
        ],
    )


def _mooncake(file: Path) -> Trace:
    rows = _rows(file, ("timestamp_ms", "input_tokens", "output_tokens", "shared_prefix_tokens"))
    return _sorted(
        "mooncake",
        [(int(row["timestamp_ms"]) / 1000.0, _uncached(row), int(row["output_tokens"])) for row in rows],
    )


def _composed(file: Path) -> Rates:
    """The day of all three regions in one pool, as rates with the requests it had."""
    rows = _rows(file, ("t_seconds_utc", "input_tokens", "output_tokens", "shared_prefix_tokens"))
    counts = [0.0] * round(DAY_S / COMPOSED_STEP_S)
    for row in rows:
        # Sessions that began before midnight end after it.
        counts[int(float(row["t_seconds_utc"]) % DAY_S / COMPOSED_STEP_S)] += 1.0
    sizes = [(_uncached(row), int(row["output_tokens"])) for row in rows]
    return Rates("composed_day", COMPOSED_STEP_S, counts, sizes)


def _uncached(row: Mapping[str, str]) -> int:
    return max(1, int(row["input_tokens"]) - int(row["shared_prefix_tokens"]))


def _sorted(name: str, requests: list[tuple[float, int, int]]) -> Trace:
    requests.sort()
    at_s, prompts, outputs = zip(*requests, strict=True)
    return Trace(name, max(MINUTE_S, math.ceil(at_s[-1])), at_s, prompts, [max(1, n) for n in outputs])


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _rows(file: Path, wanted: Sequence[str]) -> list[dict[str, str]]:
    open_it = gzip.open if file.suffix == ".gz" else open
    try:
        with open_it(file, "rt", encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            rows = list(reader)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{file}: {error}") from error
    if missing or not rows:
        raise TraceError(f"{file}: " + (f"no column {', '.join(missing)}" if missing else "no rows"))
    return rows
