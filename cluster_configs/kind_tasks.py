"""The tasks of a region: which agents work at them, with how many workers, and where large results go."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from cluster_configs.fields import Block, Name, Seconds, Text, absolute
from serve_app.core.tasks import TaskClass


def _store(text: str) -> str:
    if text.startswith("s3://") and text.removeprefix("s3://").strip("/"):
        return text
    if text.startswith("file:///") and text.removeprefix("file:///").strip("/"):
        return text
    raise ValueError("this is no place for results; allowed: s3://BUCKET/PATH, file:///FOLDER")


class TaskWorkers(Block):
    """The workers of one class of tasks. Each runs ``concurrency`` tasks at once, at the agent's engine."""

    agent: Name
    min_workers: Annotated[int, Field(ge=1, le=1000)] = 1
    max_workers: Annotated[int, Field(ge=1, le=1000)] = 1
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4


class Tasks(Block):
    """Three limits, one inside the other.

    ``read_limit_s``: an answer of the Redis that takes longer is none, and is asked for again. ``engine_limit_s``: the
    chat request of a task ends there, if the agent's own ``timeouts.total`` does not end it before; ``None``: only that
    one does. ``limit_s``: the work at a task, whatever it hangs at, is given up there, it is told where it was, and is
    tried again.
    """

    light: TaskWorkers | None = None
    heavy: TaskWorkers | None = None
    limit_s: Seconds = Field(default=1800.0, alias="limit")
    engine_limit_s: Seconds | None = Field(default=None, alias="engineLimit")
    read_limit_s: Seconds = Field(default=5.0, alias="readLimit")
    #: Where results over 256 KB go; without it such a task fails.
    results: Annotated[Text, AfterValidator(_store)] | None = None
    #: A file with a secret of the region, on each node that runs a Router, a gateway or a worker: without it nobody
    #: submits tasks, or takes them. ``grix up`` makes one where none is named.
    secret_file: Annotated[Text, AfterValidator(absolute)] | None = None

    def classes(self) -> dict[TaskClass, TaskWorkers]:
        """Those that there are."""
        both: dict[TaskClass, TaskWorkers | None] = {"light": self.light, "heavy": self.heavy}
        return {name: workers for name, workers in both.items() if workers is not None}
