"""Task workers as Serve sees them, without a cluster: what the pinned Serve asks of a consumer and its adapter."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from ray import cloudpickle
from ray.serve._private.task_consumer import TaskConsumerWrapper
from ray.serve.schema import TaskProcessorConfig

from deployments.app import build_tasks
from deployments.tasks import consumer
from deployments.tasks.consumer import BusAdapter, task_workers


def test_the_deployment_is_a_task_consumer_that_is_awaited_when_it_ends() -> None:
    made = task_workers("heavy")
    assert made.name == "TaskWorkers"
    cls: Any = made.func_or_class
    assert issubclass(cls, TaskConsumerWrapper) and inspect.iscoroutinefunction(cls.__del__)
    # Serve ships the class by value to a process that has our package.
    again = pickle.loads(cloudpickle.dumps(cls))
    assert again.__name__ == "TaskWorkers" and issubclass(again, TaskConsumerWrapper)


async def test_serve_gives_the_adapter_the_slots_and_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "ServeMeter", lambda table: None)
    cls: Any = task_workers("heavy").func_or_class
    replica = cls()
    replica.initialize_callable(3)
    adapter = replica._adapter
    assert isinstance(adapter, BusAdapter)
    assert (adapter._class, adapter._slots, adapter._handler) == ("heavy", 3, replica.work)
    # Without settings, or in a region without a Redis, there is nothing to do.
    scaling = {"queue_above_ms": 1, "slots_per_replica": 5}
    settings = {
        "region": {"name": "eu-1", "tasks": {}},
        "agent": "a",
        "limit_s": 60,
        "engine_limit_s": 30.0,
        "scaling": scaling,
    }
    await replica.reconfigure(settings)
    replica.check_health()
    assert replica.record_autoscaling_stats() == {"set_queue_above_ms": 1.0, "set_slots_per_replica": 5.0}
    assert adapter._slots == 5
    await replica.__del__()
    # Whoever collects it here does not await it.
    del cls.__del__


def test_what_clients_do_is_not_the_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "ServeMeter", lambda table: None)
    adapter = BusAdapter(TaskProcessorConfig(queue_name="light", adapter_config={"class": "light"}))
    for call in (lambda: adapter.enqueue_task_sync("work"), lambda: adapter.get_task_status_sync("t")):
        with pytest.raises(NotImplementedError, match="/v1/tasks"):
            call()


@pytest.mark.parametrize("args", [{}, {"class": "medium"}, {"class": "light", "more": 1}])
def test_what_is_no_class_of_tasks(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="light or heavy"):
        build_tasks(args)
