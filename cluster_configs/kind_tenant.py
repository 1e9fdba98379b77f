"""Tenant: who may call, how much, and where its data may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from cluster_configs.faults import Problem, shown
from cluster_configs.fields import Block, Count, Document, Items, Metadata, Name, Word, repeated, under

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
#: SHA-256 of nothing: a key made from an unset variable would let everybody in.
_OF_NOTHING: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def _sha256(text: str) -> str:
    lowered = text.lower()
    if _SHA256.fullmatch(lowered) is None:
        # The value is not repeated: somebody may have pasted the key itself.
        raise ValueError(f"{len(text)} characters are no SHA-256; allowed: 64 hex digits, the key's hash")
    if lowered == _OF_NOTHING:
        raise ValueError("this is the SHA-256 of an empty key; allowed: the hash of a key that is not empty")
    return lowered


def _date(value: Any) -> Any:
    if isinstance(value, date):
        return value
    try:
        if not isinstance(value, str) or _DATE.fullmatch(value) is None:
            raise ValueError
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{shown(value)} is no day; allowed: YYYY-MM-DD such as 2027-06-30") from None


class TenantKey(Block):
    """An API key at rest. ``expires`` is the last day it is valid (UTC); ``None``: it does not expire."""

    id: Word
    sha256: Annotated[str, AfterValidator(_sha256)]
    expires: Annotated[date, BeforeValidator(_date)] | None = None


class Limits(Block):
    """What a tenant may use in a region; ``None``: no limit of that kind."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent: Count | None = None


class TenantSpec(Block):
    """``limits`` is ``None`` when there are none, ``agents`` when every agent may be used."""

    keys: Annotated[Items[TenantKey], Field(min_length=1)]
    #: Zones its data may be in; ``any`` alone means everywhere and must be written.
    residency: Annotated[Items[Name], Field(min_length=1)]
    limits: Limits | None = None
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    budget: Literal["strict", "english"] = "strict"
    agents: Annotated[Items[Name], Field(min_length=1)] | None = None
    role: Literal["user", "operator"] = "user"


class Tenant(Document):
    """The document of kind Tenant."""

    kind: Literal["Tenant"] = "Tenant"
    metadata: Metadata
    spec: TenantSpec

    def problems(self) -> Iterator[Problem]:
        """Key ids or hashes twice, and ``any`` beside zones it would make meaningless."""
        keys = self.spec.keys
        for field, values in (("id", [k.id for k in keys]), ("sha256", [k.sha256 for k in keys])):
            for i, first in repeated(values):
                yield Problem(
                    under("keys", i, field),
                    f"the {field} is the same as that of keys[{first}]; each key has its own",
                    (under("keys", i, field), under("keys", first, field)),
                )
        if "any" in self.spec.residency and len(self.spec.residency) > 1:
            yield Problem(
                under("residency"),
                "'any' stands beside zones, which it would make meaningless; allowed: [any] alone, or zones",
                (under("residency"),),
            )
        for field, words in (("residency", self.spec.residency), ("agents", self.spec.agents or ())):
            for i, first in repeated(list(words)):
                message = f"'{words[i]}' is written twice; it is {field}[{first}] too"
                yield Problem(under(field, i), message, (under(field),))
