"""Task workers as task consumers of Ray Serve: a class made for each class of tasks, and the adapter to the bus.

Serve's own adapters acknowledge by their broker's rules; this one keeps those of :mod:`serve_app.edge.task_bus`. Of the
adapter's surface a consumer needs its life cycle alone: tasks are submitted, read and cancelled by the Router.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig
from ray.serve.task_consumer import task_consumer, task_handler

from autoscale.ray_policy import SETTING
from serve_app.core.tasks import TaskClass
from serve_app.edge.region_tasks import BusOfRegion
from serve_app.edge.serve_metrics import ServeMeter
from serve_app.edge.task_chat import ChatTask
from serve_app.edge.task_results import TaskResults
from serve_app.edge.task_store import FAILURES
from serve_app.edge.task_watch import TaskWatch
from serve_app.edge.task_worker import Result, TaskWorker, Work
from serve_app.edge.tasks_app import GRACE_S
from serve_app.metrics import TASKS

log = logging.getLogger("ray.serve")

#: How often the class is looked at for metrics and scaling.
WATCH_S: Final = 2.0
ROUTER_APP: Final = "grix"


class RouterCall:
    """A request to the region's Router by handle, cancelled with whoever waits for it."""

    def __init__(self) -> None:
        self._handle: DeploymentHandle | None = None

    async def __call__(
        self, tenant: str, body: bytes, request_id: str, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        if self._handle is None:
            found = await asyncio.to_thread(serve.get_deployment_handle, "Router", ROUTER_APP)
            # The first .options() must run on the loop that will use the handle.
            self._handle = found.options(
                method_name="run_task", request_serialization="pickle", response_serialization="pickle"
            )
        response = self._handle.remote(tenant, body, request_id, headers)
        ended = False
        try:
            answer: tuple[int, Mapping[str, str], bytes] = await response
            ended = True
            return answer
        finally:
            if not ended:
                response.cancel()


class BusAdapter(TaskProcessorAdapter):
    """Runs a :class:`TaskWorker` with the handler that Serve registers, from the first settings on."""

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__()
        self._class: TaskClass = config.adapter_config["class"]
        self._slots = 1
        self._handler: Callable[[Work], Awaitable[Result]] | None = None
        self._of_region = BusOfRegion()
        self._worker: TaskWorker | None = None
        self._watch: TaskWatch | None = None
        self._meter = ServeMeter(TASKS)
        self._watching: asyncio.Task[None] | None = None

    def initialize(self, consumer_concurrency: int = 1) -> None:
        self._slots = consumer_concurrency

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        self._handler = func

    def start_consumer(self, **kwargs: Any) -> None:
        """Where the bus is comes with the settings, a moment later: see :meth:`configure`."""

    def stop_consumer(self, timeout: float = GRACE_S) -> None:
        """What runs is handed back by :meth:`stop`, which Serve awaits."""

    async def configure(self, region: Mapping[str, Any], limit_s: float, slots: int) -> None:
        """Begins to work, or goes on with another bus; on the loop that works.

        Raises:
            OSError: when the file of the password or of the secret cannot be read.
        """
        self._slots = slots
        leave = functools.partial(self._end_worker, 0.0)
        if await self._of_region.configure(region, leave) or self._worker is None:
            if self._of_region.bus is None:
                return
            assert self._handler is not None
            watch = TaskWatch(region["name"], self._class, self._meter, time.monotonic)
            self._watch, self._worker = (
                watch,
                TaskWorker(
                    self._of_region.bus,
                    self._class,
                    secrets.token_hex(8),
                    self._slots,
                    self._handler,
                    limit_s,
                    random.random,
                    watch.ended,
                ),
            )
            self._worker.start()
            self._watching = asyncio.create_task(self._watch_on(watch))
        self._worker.limit_s = limit_s
        self._worker.resize(slots)

    async def _watch_on(self, watch: TaskWatch) -> None:
        told = False
        while True:
            bus = self._of_region.bus
            try:
                if bus is not None:
                    for how in [] if told else await bus.loses():
                        log.error("Redis loses tasks %s", how)
                    told = True
                    await watch.look(bus)
            except FAILURES:
                log.info("Redis does not answer: nothing is known of the tasks")
            await asyncio.sleep(WATCH_S)

    async def stop(self, grace_s: float) -> None:
        """Lets what runs end within ``grace_s``, and hands the rest back."""
        await self._end_worker(grace_s)
        if self._of_region.bus is not None:
            await self._of_region.bus.close()

    async def _end_worker(self, grace_s: float) -> None:
        if self._watching is not None:
            self._watching.cancel()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(grace_s)

    def for_scaling(self) -> dict[str, float]:
        if self._watch is None or self._worker is None:
            return {}
        return self._watch.for_scaling(self._worker.running)

    def check(self) -> None:
        """Raises RuntimeError when it works no more."""
        if self._worker is not None:
            self._worker.check()
        if self._watching is not None and self._watching.done() and self._worker is not None:
            raise RuntimeError("nobody looks at the tasks any more")

    def enqueue_task_sync(self, task_name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        raise NotImplementedError("POST /v1/tasks submits")

    def get_task_status_sync(self, task_id: str) -> Any:
        raise NotImplementedError("GET /v1/tasks/ID tells")

    def cancel_task_sync(self, task_id: str) -> None:
        raise NotImplementedError("DELETE /v1/tasks/ID cancels")

    def get_metrics_sync(self) -> dict[str, Any]:
        return dict(self.for_scaling())

    def health_check_sync(self) -> list[dict[str, Any]]:
        self.check()
        return []


class TaskRunner:
    """What a worker's replica does: ``work`` for each task. Its user_config is that of :mod:`..edge.tasks_app`."""

    _adapter: BusAdapter

    def __init__(self) -> None:
        self._call = RouterCall()
        self._chat: ChatTask | None = None
        self._scaling: dict[str, float] = {}

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        region = user_config["region"]
        place = region["tasks"].get("results")
        results = None if place is None else TaskResults(place)
        self._chat = ChatTask(self._call, user_config["agent"], results, user_config["engine_limit_s"])
        self._scaling = {SETTING + name: float(value) for name, value in user_config["scaling"].items()}
        slots = user_config["scaling"]["slots_per_replica"]
        await self._adapter.configure(region, float(user_config["limit_s"]), slots)

    @task_handler(name="work")
    async def work(self, work: Work) -> Result:
        assert self._chat is not None
        return await self._chat(work)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """For the scaling policy: how long the oldest task waits, this worker's part of what waits, settings."""
        return {**self._adapter.for_scaling(), **self._scaling}

    def check_health(self) -> None:
        """Serve calls this every 2 s; raising replaces this worker."""
        self._adapter.check()


def task_workers(task_class: TaskClass) -> serve.Deployment:
    """The deployment of one class of tasks."""
    config = TaskProcessorConfig(queue_name=task_class, adapter=BusAdapter, adapter_config={"class": task_class})
    consumer: Any = task_consumer(task_processor_config=config)(TaskRunner)

    class TaskWorkers(consumer):  # type: ignore[misc]
        async def __del__(self) -> None:
            """Serve awaits this before the process ends; its own consumer could not await what it stops."""
            adapter = getattr(self, "_adapter", None)
            if adapter is not None:
                await adapter.stop(GRACE_S)

    made: serve.Deployment = serve.deployment(name="TaskWorkers")(TaskWorkers)
    return made
