"""What a worker gets of the bus, and what the bus keeps at most."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import RedisError

from serve_app.core.tasks import Priority, TaskClass


class NotRegistered(RedisError):
    """This worker is not registered, or has not the token of its region."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a region keeps at most. Inputs and results together leave the embedded Redis room for sessions."""

    tasks: int = 10_000
    tasks_of_tenant: int = 2_000
    #: One tenant has a quarter of it at most.
    input_bytes: int = 64 << 20
    results: int = 10_000
    result_ttl_s: float = 86_400.0
    result_bytes: int = 64 << 20
    dead: int = 1_000
    dead_ttl_s: float = 7 * 86_400.0
    dead_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """A task that a worker holds. ``silent_s``: how long the worker before it was not heard of, if it was lost."""

    id: str
    claim: str
    tenant: str
    task_class: TaskClass
    priority: Priority
    input: str
    attempts: int
    silent_s: float | None


@dataclass(frozen=True, slots=True)
class Nothing:
    """No task to take; ``due_s`` is when the next retry is due."""

    due_s: float | None
