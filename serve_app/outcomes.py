"""Why a request went, or did not go, the way it did: reasons, the errors that carry them, one status table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

#: How a finished call is classified. Only ``failed`` counts against a target.
Outcome = Literal["success", "client_left", "rejected", "evicted", "failed"]

#: Why a request ends without an answer. Each has a row in :data:`STATUS`.
Reason = Literal[
    "bad_request",
    "unknown_parameter",
    "unsupported_parameter",
    "body_too_large",
    "headers_too_large",
    "packed_body",
    "method_not_allowed",
    "not_found",
    "model_not_found",
    "context_length",
    "no_api_key",
    "bad_api_key",
    "not_allowed",
    "residency",
    "requests_limit",
    "tokens_limit",
    "concurrency_limit",
    "root_limit",
    "batch_limit",
    "task_conflict",
    "tasks_full",
    "tasks_away",
    "overloaded",
    "queue_timeout",
    "first_byte_timeout",
    "total_timeout",
    "no_target",
    "replica_lost",
    "peer_silent",
    "upstream_failed",
    "upstream_invalid",
    "internal",
]


@dataclass(frozen=True, slots=True)
class Status:
    """How a reason looks to a client: HTTP status, OpenAI ``type`` and ``code``, and whether a retry may help."""

    http: int
    type: str
    code: str
    outcome: Outcome
    retry: bool = False


#: When to come back where nothing is known about it.
UNKNOWN_RETRY_S: Final = 5.0

_INVALID: Final = "invalid_request_error"

#: The one table from reason to what the client sees.
STATUS: Final[dict[Reason, Status]] = {
    "bad_request": Status(400, _INVALID, "invalid_value", "rejected"),
    "unknown_parameter": Status(400, _INVALID, "unknown_parameter", "rejected"),
    "unsupported_parameter": Status(400, _INVALID, "unsupported_parameter", "rejected"),
    "body_too_large": Status(413, _INVALID, "request_too_large", "rejected"),
    "headers_too_large": Status(431, _INVALID, "headers_too_large", "rejected"),
    "packed_body": Status(415, _INVALID, "unsupported_encoding", "rejected"),
    "method_not_allowed": Status(405, _INVALID, "method_not_allowed", "rejected"),
    "not_found": Status(404, _INVALID, "not_found", "rejected"),
    "model_not_found": Status(404, _INVALID, "model_not_found", "rejected"),
    "context_length": Status(400, _INVALID, "context_length_exceeded", "rejected"),
    "no_api_key": Status(401, "authentication_error", "missing_api_key", "rejected"),
    "bad_api_key": Status(401, "authentication_error", "invalid_api_key", "rejected"),
    "not_allowed": Status(403, "permission_error", "not_allowed", "rejected"),
    "residency": Status(403, "permission_error", "residency", "rejected"),
    "requests_limit": Status(429, "requests", "rate_limit_exceeded", "rejected"),
    "tokens_limit": Status(429, "tokens", "rate_limit_exceeded", "rejected"),
    "concurrency_limit": Status(429, "concurrency", "rate_limit_exceeded", "rejected"),
    "root_limit": Status(429, "concurrency", "rate_limit_exceeded", "rejected"),
    "batch_limit": Status(503, "overloaded_error", "batch_limit", "rejected"),
    "task_conflict": Status(409, _INVALID, "task_conflict", "rejected"),
    "tasks_full": Status(429, "tasks", "tasks_full", "rejected"),
    "tasks_away": Status(503, "overloaded_error", "tasks_away", "rejected"),
    "overloaded": Status(503, "overloaded_error", "overloaded", "rejected", retry=True),
    "queue_timeout": Status(503, "overloaded_error", "queue_timeout", "rejected", retry=True),
    "first_byte_timeout": Status(504, "timeout_error", "first_byte_timeout", "failed", retry=True),
    "total_timeout": Status(504, "timeout_error", "total_timeout", "evicted"),
    "no_target": Status(503, "overloaded_error", "no_target", "rejected", retry=True),
    "replica_lost": Status(503, "upstream_error", "replica_lost", "failed", retry=True),
    "peer_silent": Status(503, "upstream_error", "peer_silent", "failed", retry=True),
    "upstream_failed": Status(502, "upstream_error", "upstream_failed", "failed", retry=True),
    "upstream_invalid": Status(502, "upstream_error", "upstream_invalid_response", "failed", retry=True),
    "internal": Status(500, "internal_error", "internal_error", "failed"),
}


#: A tenant's or the region's limits said no, before anything ran.
LIMITED: Final[frozenset[Reason]] = frozenset(
    {"requests_limit", "tokens_limit", "concurrency_limit", "root_limit", "batch_limit"}
)


class GrixError(Exception):
    """A request that ends with an error of ours.

    ``message`` is for the client and never holds a stack trace; ``param`` names a field, never a value of the
    client's; ``retry_after_s`` is what is known about when to come back, ``None`` when nothing is; ``told`` are
    headers that explain it.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        told: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self._told = dict(told or {})

    @property
    def status(self) -> Status:
        return STATUS[self.reason]

    def envelope(self) -> dict[str, Any]:
        """The OpenAI error object: ``{"error": {message, type, param, code}}``."""
        status = self.status
        return {"error": {"message": self.message, "type": status.type, "param": self.param, "code": status.code}}

    def headers(self) -> dict[str, str]:
        """``retry-after`` in whole seconds, at least 1, on every status that invites a retry (429 and 503)."""
        if self.status.http not in (429, 503):
            return self._told
        known_s = UNKNOWN_RETRY_S if self.retry_after_s is None else self.retry_after_s
        return {**self._told, "retry-after": str(max(1, math.ceil(known_s)))}
