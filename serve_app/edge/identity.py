"""Who is who in a federation: the URI that a certificate carries, and the name that a dialler checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, cast

Part = Literal["region", "coordinator", "operator"]

_NAME: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_URI: Final = re.compile(rf"grix://({_NAME})/(?:(region|operator)/({_NAME})|(coordinator))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """A region, the coordinator (which has no name of its own) or an operator, of one federation."""

    federation: str
    part: Part
    name: str = ""

    @property
    def path(self) -> PurePosixPath:
        """Below the URI's host, and below a folder of certificates."""
        return PurePosixPath(self.part, self.name)

    @property
    def uri(self) -> str:
        return f"grix://{self.federation}/{self.path}"

    @property
    def dns(self) -> str:
        """The name in its certificate that who dials it expects, whatever the address is."""
        return ".".join(part for part in (self.name, self.part, self.federation, "grix") if part)

    def __str__(self) -> str:
        return self.uri


def identity_of(uri: str) -> Identity | None:
    """The identity of a URI; ``None`` when it is none of ours."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    federation, part, name, alone = found.groups()
    return Identity(federation, cast(Part, alone or part), name or "")
