"""A tenant's allowances as OpenAI tells them, in ``x-ratelimit-*`` headers, which its clients read."""

from __future__ import annotations

import math

from serve_app.core.admission import MINUTE_S, Left


def rate_headers(left: Left) -> dict[str, str]:
    """What a minute holds, what of it is left, and when all of it is there again; nothing where there is no limit."""
    told = {}
    for kind, known in (("requests", left.requests), ("tokens", left.tokens)):
        if known is not None:
            told[f"x-ratelimit-limit-{kind}"] = str(math.floor(known.per_minute))
            told[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(known.level)))
            full_s = max(0.0, known.per_minute - known.level) * MINUTE_S / known.per_minute
            told[f"x-ratelimit-reset-{kind}"] = _duration(full_s)
    return told


def _duration(seconds: float) -> str:
    """``0s``, ``120ms``, ``8.64s``, ``6m0s``: never shorter than it is."""
    ms = math.ceil(seconds * 1000 - 1e-6)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    rest = f"{ms / 1000:g}s"
    return f"{minutes}m{rest}" if minutes else rest
