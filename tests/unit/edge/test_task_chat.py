"""From a task to the answer that is its result: what is waited for, what is tried again, and what is given up."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.admission import trace_root
from serve_app.core.table import Timeouts
from serve_app.decision import shorten
from serve_app.edge.task_chat import ChatTask, trace_of
from serve_app.edge.task_jobs import Job
from serve_app.edge.task_results import TaskResults
from serve_app.edge.task_worker import NotNow, Result, TaskFailed, Work
from serve_app.outcomes import GrixError, Reason
from serve_app.relay import error_json

JOB = Job("acme/t1", "00000000000000c1", "acme", "light", "normal", '{"messages": [], "temperature": 0}', 2, None)


@dataclass
class Told:
    """A bus that only hears of progress."""

    progress: list[str] = field(default_factory=list)

    async def tell(self, job: Job, at: str) -> None:
        self.progress.append(at)


@dataclass
class Region:
    """Answers one after the other, and notes what was asked."""

    answers: deque[tuple[int, Mapping[str, str], bytes]]
    asked: list[tuple[str, Any, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def call(
        self, tenant: str, body: bytes, request_id: str, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        self.asked.append((tenant, json.loads(body), request_id))
        self.headers.append(dict(headers))
        return self.answers.popleft()


def refused(reason: Reason, retry_after_s: float | None = None) -> tuple[int, Mapping[str, str], bytes]:
    error = GrixError(reason, "not now", retry_after_s=retry_after_s)
    return error.status.http, error.headers(), error_json(error)


GOOD = (200, {"content-type": "application/json"}, b'{"choices": []}')


async def run(*answers: tuple[int, Mapping[str, str], bytes], **more: Any) -> tuple[Region, list[str], Result]:
    region, told = Region(deque(answers)), Told()
    task = ChatTask(region.call, "qwen-doc", more.pop("results", None), **more)
    result = await task(Work(JOB, told))  # type: ignore[arg-type]
    return region, told.progress, result


async def test_the_request_goes_to_the_agent_of_the_class_under_the_name_of_the_task() -> None:
    region, progress, result = await run(GOOD)
    assert result == Result('{"choices": []}') and progress == ["asked"]
    body = {"messages": [], "temperature": 0, "model": "qwen-doc"}
    assert region.asked == [("acme", body, "task:acme:t1:2")]
    assert region.headers == [{"x-task-type": "batch", "traceparent": trace_of(JOB)}]


async def test_the_limit_of_the_engine_goes_with_the_request_and_a_late_answer_is_a_failure() -> None:
    region, _, _ = await run(GOOD, engine_limit_s=90.5)
    assert region.headers[0]["x-grix-total-timeout"] == "90500ms"
    timeouts = shorten(Timeouts(total_s=600.0), region.headers[0])
    assert timeouts.total_s == 90.5
    with pytest.raises(TaskFailed, match=r"^total_timeout: ") as late:
        await run(refused("total_timeout"), engine_limit_s=90.5)
    assert not late.value.final


def test_the_parts_of_a_task_are_one_root() -> None:
    one, other = (trace_of(replace(JOB, id=f"acme/t1:{n}", claim=f"{n:016x}")) for n in (1, 2))
    assert one != other and trace_root(one) == trace_root(other) is not None
    assert trace_root(one) == trace_root(trace_of(replace(JOB, id="acme/t1")))
    assert trace_root(one) != trace_root(trace_of(replace(JOB, id="acme/t2")))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refused("batch_limit", 3.0), ("waits: batch_limit", 3.0)),
        (refused("tokens_limit", 40.0), ("waits: rate_limit_exceeded", 40.0)),
        ((503, {}, b"{}"), ("waits: unknown", 1.0)),
    ],
)
async def test_limits_and_a_full_region_are_no_failure(
    answer: tuple[int, Mapping[str, str], bytes], said: tuple[str, float]
) -> None:
    with pytest.raises(NotNow) as wait:
        await run(answer)
    assert (str(wait.value), wait.value.after_s) == said


@pytest.mark.parametrize(
    ("reason", "final"),
    [
        ("context_length", True),
        ("residency", True),
        ("model_not_found", True),
        ("upstream_failed", False),
        ("total_timeout", False),
        ("internal", False),
    ],
)
async def test_what_another_attempt_could_change_is_tried_again(reason: Reason, final: bool) -> None:
    with pytest.raises(TaskFailed, match="not now") as failed:
        await run(refused(reason))
    assert failed.value.final is final


async def test_an_answer_that_nobody_understands_is_a_failure() -> None:
    with pytest.raises(TaskFailed, match="unknown: an answer that is no error of ours"):
        await run((500, {}, b"<html>"))


async def test_a_large_result_goes_where_there_is_room(tmp_path: Path) -> None:
    results = TaskResults(f"file://{tmp_path}")
    _, progress, result = await run(GOOD, results=results, inline_bytes=4)
    assert result == Result("", f"file://{tmp_path}/acme/t1-00000000000000c1.json") and progress == ["asked", "stores"]
    assert (tmp_path / "acme/t1-00000000000000c1.json").read_bytes() == GOOD[2]


async def test_a_large_result_without_a_place_and_with_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match=r"over 4 the region needs tasks\.results") as failed:
        await run(GOOD, inline_bytes=4)
    assert failed.value.final
    (tmp_path / "acme").write_text("no folder")
    with pytest.raises(TaskFailed, match="cannot be stored") as failed:
        await run(GOOD, results=TaskResults(f"file://{tmp_path}"), inline_bytes=4)
    assert not failed.value.final
