"""Guard rails of a rollout: how much worse than the release before a new one may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serve_app.core.trial import ReleaseCount

#: First tokens are counted in classes; so much above the limit is noise of a short one.
SLACK_MS: Final = 50.0


@dataclass(frozen=True, slots=True)
class Guards:
    """What the new release may have more than the one before: shares of its requests, and times its first token p95.

    ``mismatched_ratio`` is of answers in another language than their question's.
    """

    failed_ratio: float = 0.05
    truncated_ratio: float = 0.1
    mismatched_ratio: float = 0.05
    first_token_times: float = 1.5


def breach(guards: Guards, old: ReleaseCount | None, new: ReleaseCount, min_samples: int) -> str:
    """What speaks against the new release, empty when nothing does or too little is known.

    ``old`` is ``None`` where the release before was asked too seldom: then a failure counts against none at all, and
    what a healthy release may well have (answers cut short, a slow first token) is not judged.
    """
    if new.requests < min_samples:
        return ""
    failed = _more("failed", guards.failed_ratio, _share(old, "failed", "requests") or 0.0, new, "requests")
    if failed or old is None:
        return failed
    for name, limit, of in (
        ("truncated", guards.truncated_ratio, "requests"),
        ("mismatched", guards.mismatched_ratio, "heard"),
    ):
        before = _share(old, name, of)
        if before is None or getattr(new, of) < min_samples:
            continue
        if said := _more(name, limit, before, new, of):
            return said
    was_ms, is_ms = old.first_token_p95_ms, new.first_token_p95_ms
    if was_ms is None or is_ms is None or sum(new.first_tokens) < min_samples:
        return ""
    if is_ms <= was_ms * guards.first_token_times + SLACK_MS:
        return ""
    return f"first token p95 {is_ms:.0f} ms, {was_ms:.0f} ms before; allowed: {guards.first_token_times:g} times"


def _share(count: ReleaseCount | None, name: str, of: str) -> float | None:
    whole = 0 if count is None else getattr(count, of)
    return getattr(count, name) / whole if whole else None


_WORDS: Final = {"failed": "failed", "truncated": "were cut short", "mismatched": "were in another language"}


def _more(name: str, limit: float, before: float, new: ReleaseCount, of: str) -> str:
    share = getattr(new, name) / getattr(new, of)
    if share <= before + limit:
        return ""
    said = f"{getattr(new, name)} of {getattr(new, of)} {_WORDS[name]} ({share:.0%})"
    return f"{said}, {before:.0%} before; allowed: {limit:.0%} more"
