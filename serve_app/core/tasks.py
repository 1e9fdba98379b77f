"""Work that nobody waits for: its states, when it is tried again, whose turn it is, and which workers may take it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

#: ``light`` and ``heavy`` are worked by different agents, with limits of their own.
TaskClass = Literal["light", "heavy"]
Priority = Literal["high", "normal"]
Wanted = Literal["light", "heavy", "auto"]
State = Literal["queued", "running", "retrying", "done", "failed", "cancelled"]

#: From the smallest context on.
CLASSES: Final[tuple[TaskClass, ...]] = ("light", "heavy")
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal")
#: Nothing happens to a task in one of these, unless an operator replays it.
ENDED: Final[frozenset[State]] = frozenset({"done", "failed", "cancelled"})

#: How long a task waits after its 1st, 2nd and 3rd failure. Each wait is followed by an attempt: there is the first one
#: and at most three more, then it is a dead letter.
RETRY_AFTER_S: Final = (1.0, 5.0, 30.0)
MOST_ATTEMPTS: Final = 1 + len(RETRY_AFTER_S)
#: Of the tasks that are taken while both kinds wait, so many are normal ones at least.
NORMAL_SHARE: Final = 0.2

#: Why a task became a dead letter. ``bad_payload``: what stood in the stream was no task of ours.
DeadReason = Literal["bad_payload", "refused", "failed", "timeout", "worker_lost"]


def retry_after_s(attempts: int) -> float | None:
    """How long to wait after so many failed attempts; ``None``: no more are made."""
    return RETRY_AFTER_S[attempts - 1] if attempts <= len(RETRY_AFTER_S) else None


def looks_first_at(turn: int, normal_share: float = NORMAL_SHARE) -> Priority:
    """Where a worker looks first when it takes its ``turn``-th task (from 0): high, but for the share of the others.

    Of any ``1 / normal_share`` turns in a row one is normal, so that a steady flow of high ones starves nobody.
    """
    return "normal" if math.floor((turn + 1) * normal_share) > math.floor(turn * normal_share) else "high"


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one class: the context of their agent in tokens, and how many were heard of lately."""

    context: int
    alive: int = 0


def place(wanted: Wanted, tokens: int, workers: Mapping[TaskClass, Workers]) -> TaskClass | None:
    """The class that a task of so many tokens, answer included, goes to; ``None``: it is too long for all there are.

    What is too long for the class it asked for goes to a bigger one. ``auto`` takes the smallest context that is
    enough, and passes over a class without living workers where another one has some.
    """
    first = 0 if wanted == "auto" else CLASSES.index(wanted)
    fits = [name for name in CLASSES[first:] if name in workers and tokens <= workers[name].context]
    alive = [name for name in fits if workers[name].alive > 0] if wanted == "auto" else []
    return next(iter(alive or fits), None)


@dataclass(frozen=True, slots=True)
class NewTask:
    """What is asked. ``id`` makes it one task however often it is submitted; ``input`` is JSON."""

    id: str
    tenant: str
    task_class: TaskClass
    priority: Priority
    input: str


@dataclass(frozen=True, slots=True)
class NewParts:
    """A task in parts, which run like tasks of their own, in any order; it has ended when all of them have."""

    id: str
    tenant: str
    priority: Priority
    #: In the order of their results. Their ids are ``ID:PART``.
    parts: tuple[NewTask, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    """``conflict``: the id is that of a task with another input. ``full``: of tasks, or of this tenant's. ``region``
    is where a task was sent that is ``elsewhere``."""

    how: Literal["new", "known", "conflict", "full", "tenant_full", "elsewhere"]
    state: State | None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A note that a task is in ``region``; ``None``: it is in this one. ``nonce`` tells it from a later note."""

    region: str | None
    is_new: bool
    nonce: str


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it stands. Times are of Redis's clock, in seconds since 1970."""

    id: str
    tenant: str
    task_class: TaskClass
    priority: Priority
    state: State
    attempts: int
    submitted_unix_s: float
    started_unix_s: float | None
    ended_unix_s: float | None
    input: str | None
    result: str | None
    uri: str | None
    reason: DeadReason | None
    message: str | None
    #: Of a task in parts, how many have not ended; ``None`` for every other one.
    left: int | None = None


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Some dead letters, the newest first; ``next_offset`` is where the others begin, ``None``: there are none."""

    letters: tuple[Task, ...]
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task; ``id`` orders them."""

    id: str
    state: str
    data: str


@dataclass(frozen=True, slots=True)
class ClassStats:
    """One class of tasks now. Ages are those of the task that waits longest, 0 where none does."""

    waiting: Mapping[Priority, int] = field(default_factory=dict)
    oldest_s: Mapping[Priority, float] = field(default_factory=dict)
    running: int = 0
    workers: int = 0
    slots: int = 0
