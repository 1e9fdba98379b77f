"""Reasons as a client sees them."""

from __future__ import annotations

from typing import get_args

import pytest

from serve_app.outcomes import STATUS, GrixError, Outcome, Reason


def test_every_reason_has_a_row_and_every_row_a_reason() -> None:
    assert set(STATUS) == set(get_args(Reason))
    assert {row.outcome for row in STATUS.values()} <= set(get_args(Outcome))


@pytest.mark.parametrize(
    ("reason", "http", "kind", "code", "outcome"),
    [
        ("bad_request", 400, "invalid_request_error", "invalid_value", "rejected"),
        ("unknown_parameter", 400, "invalid_request_error", "unknown_parameter", "rejected"),
        ("body_too_large", 413, "invalid_request_error", "request_too_large", "rejected"),
        ("method_not_allowed", 405, "invalid_request_error", "method_not_allowed", "rejected"),
        ("not_found", 404, "invalid_request_error", "not_found", "rejected"),
        ("model_not_found", 404, "invalid_request_error", "model_not_found", "rejected"),
        ("context_length", 400, "invalid_request_error", "context_length_exceeded", "rejected"),
        ("no_api_key", 401, "authentication_error", "missing_api_key", "rejected"),
        ("bad_api_key", 401, "authentication_error", "invalid_api_key", "rejected"),
        ("not_allowed", 403, "permission_error", "not_allowed", "rejected"),
        ("residency", 403, "permission_error", "residency", "rejected"),
        ("requests_limit", 429, "requests", "rate_limit_exceeded", "rejected"),
        ("tokens_limit", 429, "tokens", "rate_limit_exceeded", "rejected"),
        ("concurrency_limit", 429, "concurrency", "rate_limit_exceeded", "rejected"),
        ("root_limit", 429, "concurrency", "rate_limit_exceeded", "rejected"),
        ("batch_limit", 503, "overloaded_error", "batch_limit", "rejected"),
        ("task_conflict", 409, "invalid_request_error", "task_conflict", "rejected"),
        ("tasks_full", 429, "tasks", "tasks_full", "rejected"),
        ("tasks_away", 503, "overloaded_error", "tasks_away", "rejected"),
        ("overloaded", 503, "overloaded_error", "overloaded", "rejected"),
        ("queue_timeout", 503, "overloaded_error", "queue_timeout", "rejected"),
        ("first_byte_timeout", 504, "timeout_error", "first_byte_timeout", "failed"),
        ("total_timeout", 504, "timeout_error", "total_timeout", "evicted"),
        ("no_target", 503, "overloaded_error", "no_target", "rejected"),
        ("replica_lost", 503, "upstream_error", "replica_lost", "failed"),
        ("upstream_failed", 502, "upstream_error", "upstream_failed", "failed"),
        ("upstream_invalid", 502, "upstream_error", "upstream_invalid_response", "failed"),
        ("internal", 500, "internal_error", "internal_error", "failed"),
    ],
)
def test_the_status_table(reason: Reason, http: int, kind: str, code: str, outcome: str) -> None:
    row = STATUS[reason]
    assert (row.http, row.type, row.code, row.outcome) == (http, kind, code, outcome)


@pytest.mark.parametrize(
    ("known_s", "told"), [(None, "5"), (0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (59.5, "60"), (-3.0, "1")]
)
def test_retry_after_is_in_whole_seconds_rounded_up_and_at_least_one(known_s: float | None, told: str) -> None:
    assert GrixError("overloaded", "x", retry_after_s=known_s).headers() == {"retry-after": told}


def test_no_other_status_carries_retry_after() -> None:
    assert GrixError("upstream_failed", "x", retry_after_s=9.0).headers() == {}


def test_an_error_is_an_exception_that_says_its_message() -> None:
    error = GrixError("bad_request", "said", param="model")
    assert (str(error), error.reason, error.param, error.retry_after_s) == ("said", "bad_request", "model", None)
