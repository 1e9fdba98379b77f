"""Tasks as they stand in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from serve_app.core.tasks import DeadReason, Priority, State, Task, TaskClass


def task_of(row: Mapping[str, str]) -> Task:
    """The task in a hash of Redis."""

    def when_s(name: str) -> float | None:
        return int(row[name]) / 1000 if row.get(name) else None

    return Task(
        id=row["id"],
        tenant=row["tenant"],
        task_class=cast(TaskClass, row["class"]),
        priority=cast(Priority, row["priority"]),
        state=cast(State, row["state"]),
        attempts=int(row["attempts"]),
        submitted_unix_s=int(row["submitted_ms"]) / 1000,
        started_unix_s=when_s("started_ms"),
        ended_unix_s=when_s("ended_ms"),
        input=row.get("input"),
        result=row.get("result"),
        uri=row.get("uri") or None,
        reason=cast(DeadReason, row.get("reason")) or None,
        message=row.get("message") or None,
        left=int(row["left"]) if "left" in row else None,
    )
