"""What goes to the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from serve_app.outcomes import GrixError
from serve_app.ports import RequestRecord
from serve_app.relay import error_json


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole body, or bytes as they come."""

    status: int
    headers: dict[str, str]
    body: bytes | AsyncGenerator[bytes, None]


def refusal(error: GrixError, record: RequestRecord, told: Mapping[str, str]) -> Answer:
    """An error as an answer; ``told`` are headers that explain it."""
    headers = {"content-type": "application/json", **told}
    if record.region:
        headers["x-grix-region"] = record.region
    return Answer(error.status.http, headers, error_json(error))
