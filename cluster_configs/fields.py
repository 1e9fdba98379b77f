"""Types that the kinds share. Nothing is converted in silence, so a typo cannot change what a value means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidationInfo,
    model_validator,
)

from cluster_configs.faults import Path, Problem, dotted, shown
from cluster_configs.quantities import (
    DURATIONS_ALLOWED,
    SIZES_ALLOWED,
    QuantityError,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)

T = TypeVar("T")
API_VERSION: Final = "grix.io/v1"

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(?:-[A-Z][a-z]{3})?(?:-(?:[A-Z]{2}|\d{3}))?", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_ADDRESS: Final = re.compile(rf"(?:\[[0-9A-Fa-f:.]+\]|{_WORD.pattern}):(?P<port>\d{{1,5}})", re.ASCII)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class Block(BaseModel):
    """A block of keys: camelCase in YAML, snake_case here, frozen, no unknown keys, no conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, alias_generator=_camel)

    #: Keys of a block that may be written as ``{}`` because empty means something there.
    may_be_empty: ClassVar[frozenset[str]] = frozenset()


def matched(pattern: re.Pattern[str], longest: int, allowed: str) -> AfterValidator:
    """A validator: the whole text has this form and at most ``longest`` characters."""

    def check(text: str) -> str:
        if len(text) > longest or pattern.fullmatch(text) is None:
            raise ValueError(f"{shown(text)} is not allowed here; allowed: {allowed}")
        return text

    return AfterValidator(check)


def _quantity(parse: Callable[[str], Any], allowed: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"a block, list or switch cannot stand here; allowed: {allowed}")
        try:
            return parse(value if isinstance(value, str) else f"{value}")
        except QuantityError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(check)


#: Seconds as float; written ``30s``. Written back by bundles in the same form.
Seconds = Annotated[
    float,
    _quantity(parse_duration_s, DURATIONS_ALLOWED),
    PlainSerializer(format_duration, return_type=str),
]
#: Bytes as int; written ``24Gi``.
Bytes = Annotated[int, _quantity(parse_size_bytes, SIZES_ALLOWED), PlainSerializer(format_size, return_type=str)]
#: A share in (0, 1].
Ratio = Annotated[float, Field(gt=0, le=1)]
#: A list in YAML, a tuple here.
Items = Annotated[tuple[T, ...], Strict(False)]

Name = Annotated[str, matched(_NAME, 40, "small letters, digits and single dashes between them, at most 40 characters")]
Word = Annotated[str, matched(_WORD, 63, "letters, digits and . _ - between them, at most 63 characters")]
LanguageCode = Annotated[str, matched(_LANGUAGE, 12, "a language code such as ja, zh-Hant or pt-BR")]
Version = Annotated[str, matched(_WORD, 63, 'a version such as "1" or "2026.1", letters, digits and . _ -')]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def absolute(text: str) -> str:
    """Validates the path of a file or folder of the machine."""
    if not text.startswith("/"):
        raise ValueError("this is no absolute path; allowed: a path from / on, as Routers have folders of their own")
    return text


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise ValueError(f'{shown(text)} is no address; allowed: "HOST:PORT", port 1 to 65535, as "127.0.0.1:7443"')
    return text


Address = Annotated[str, AfterValidator(_address)]


class Metadata(Block):
    """A document's name, unique among its kind."""

    name: Name


class Document(Block):
    """What every kind has. ``problems`` are contradictions between values that are each allowed."""

    api_version: Literal["grix.io/v1"] = API_VERSION
    kind: str

    #: In the validation context: problems are not raised, because the loader collects them itself.
    DEFER: ClassVar[str] = "grix-defer-problems"

    def problems(self) -> Iterator[Problem]:
        """Contradictions inside the document, with paths from its root."""
        yield from ()

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Document:
        if not (info.context and self.DEFER in info.context):
            found = [f"{dotted(p.path)}: {p.message}" for p in self.problems()]
            if found:
                raise ValueError("; ".join(found))
        return self


def under(*parts: str | int) -> Path:
    """A path inside ``spec``."""
    return ("spec", *parts)


def repeated(values: list[str]) -> Iterator[tuple[int, int]]:
    """(later, first) positions of values that were there before."""
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        if value in first:
            yield i, first[value]
        first.setdefault(value, i)
