"""vLLM's statuses as our reasons."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.vllm_failures import failure_of, stream_failure
from serve_app.core.openings import judge_opening

STATUSES = [400, 404, 413, 422, 429, 500, 502, 503]


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_is_the_same_reason_in_a_stream_in_an_answer_and_to_a_router(status: int) -> None:
    event = "data: " + json.dumps({"error": {"message": "said", "code": status}})
    answer: Any = SimpleNamespace(error=SimpleNamespace(code=status, message="said", param=None))
    fault: Any = judge_opening(f"{event}\n\n".encode())
    assert stream_failure(event).reason == failure_of(answer).reason == fault.reason


def test_too_many_requests_are_back_pressure_and_no_fault_of_the_caller() -> None:
    assert stream_failure('data: {"error": {"message": "said", "code": 429}}').reason == "overloaded"
