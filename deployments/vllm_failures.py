"""vLLM's errors as our failures: a reason, and words for a client without traces or class names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from serve_app.outcomes import Reason
from serve_app.ports import Failure

if TYPE_CHECKING:
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse


def plain(error: Exception) -> str:
    """A validation error as one line for a client: no trace, no class names, bounded."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        # Parts with brackets are names of validators, not of fields.
        parts = [f"{'.'.join(str(p) for p in e['loc'] if '[' not in str(p))}: {e['msg']}" for e in errors()[:3]]
        return "; ".join(parts)[:500]
    return str(error)[:500]


#: vLLM's status to our reason. 4xx is the caller's but for "too many requests", the rest is ours.
_REASON: Final[dict[int, Reason]] = {429: "overloaded", 503: "overloaded", 501: "bad_request"}


def _reason(code: int) -> Reason:
    return _REASON.get(code, "bad_request" if 400 <= code < 500 else "upstream_failed")


def failure_of(response: ErrorResponse) -> Failure:
    error = response.error
    return Failure(_reason(int(error.code)), error.message[:500], error.param)


def stream_failure(event: str) -> Failure:
    """An error that vLLM put into a stream."""
    try:
        error = json.loads(event[len("data: ") :])["error"]
        return Failure(_reason(int(error.get("code", 500))), str(error["message"])[:500], error.get("param"))
    except (ValueError, KeyError, TypeError):
        return Failure("upstream_failed", "The engine broke off.")
