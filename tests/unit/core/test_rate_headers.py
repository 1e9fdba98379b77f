"""Allowances in OpenAI's headers."""

from __future__ import annotations

import pytest

from serve_app.core.admission import Allowance, Left
from serve_app.core.rate_headers import rate_headers


@pytest.mark.parametrize(
    ("per_minute", "level", "limit", "remaining", "reset"),
    [
        (600, 600.0, "600", "600", "0s"),
        (600, 599.0, "600", "599", "100ms"),
        (600, 590.5, "600", "590", "950ms"),
        (600, 513.6, "600", "513", "8.64s"),
        (600, 0.0, "600", "0", "1m0s"),
        # Owed: nothing is left, and it takes longer than a minute until all of it is there.
        (600, -3000.0, "600", "0", "6m0s"),
        (600, -15.04, "600", "0", "1m1.504s"),
        # A Router alone allows its part.
        (2 / 3, 0.0, "0", "0", "1m0s"),
    ],
)
def test_a_bucket_as_headers(per_minute: float, level: float, limit: str, remaining: str, reset: str) -> None:
    for kind in ("requests", "tokens"):
        told = rate_headers(Left(**{kind: Allowance(per_minute, level)}))
        assert told == {
            f"x-ratelimit-limit-{kind}": limit,
            f"x-ratelimit-remaining-{kind}": remaining,
            f"x-ratelimit-reset-{kind}": reset,
        }


def test_without_limits_nothing_is_told() -> None:
    assert rate_headers(Left()) == {}
