"""The bytes of a body as a JSON object: bounded in size and depth, in UTF-8, with finite numbers only."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from serve_app.core.texts import clean_text
from serve_app.openai_rules import bad, kind_of, shown
from serve_app.outcomes import GrixError

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_NESTING: Final = 64
#: Whole numbers as messages between processes carry them.
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


def _reject_constant(name: str) -> Any:
    raise bad("body", f"{name} is not JSON; allowed are finite numbers.")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: who looked at a body before, a filter say, may have read the other value."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise bad("body", f"has {shown(twice)} more than once in one object.")
    return made


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        GrixError: ``body_too_large`` or ``bad_request``.
    """
    if len(raw) > MAX_BODY_BYTES:
        raise GrixError("body_too_large", f"The body has {len(raw)} bytes; at most {MAX_BODY_BYTES} are allowed.")
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_reject_constant, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise bad("body", f"is not UTF-8: byte {error.start}.") from None
    except RecursionError:
        raise bad("body", f"is nested deeper than {MAX_NESTING}.") from None
    except ValueError as error:
        raise bad("body", f"is not JSON: {str(error)[:120]}.") from None
    if not isinstance(value, dict):
        raise bad("body", f"must be a JSON object, is {kind_of(value)}.")
    return {clean_text(str(k)): clean(v, clean_text(str(k))[:60], 1) for k, v in value.items()}


def clean(value: Any, path: str, depth: int) -> Any:
    """A JSON value that an engine can take: strings that UTF-8 can carry, finite numbers, bounded depth."""
    if depth > MAX_NESTING:
        raise bad(path, f"is nested deeper than {MAX_NESTING}.")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise bad(path, "is too large for a number.")
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise bad(path, "is too large for a whole number.")
    if isinstance(value, list):
        return [clean(v, path, depth + 1) for v in value]
    if isinstance(value, dict):
        return {clean_text(k): clean(v, path, depth + 1) for k, v in value.items()}
    return value
