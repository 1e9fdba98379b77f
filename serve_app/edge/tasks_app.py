"""The Serve applications of a region's task workers: one a class, scaled by what waits."""

from __future__ import annotations

from typing import Any, Final

from cluster_configs import schema
from cluster_configs.kind_tasks import TaskWorkers
from cluster_configs.scale_trigger import LOAD_WINDOW_S
from serve_app.core.tasks import TaskClass
from serve_app.edge.agent_app import POLICY, TOLD_S
from serve_app.edge.federation_apps import THIN_CPUS

#: A worker that is told to end has so long; what runs then is handed back a little before.
SHUTDOWN_S: Final = 60.0
GRACE_S: Final = 45.0
#: A class whose oldest task waits longer gets more workers; one where none waits so long for :data:`QUIET_S` fewer.
UP_MS: Final = 10_000.0
DOWN_MS: Final = 1_000.0
QUIET_S: Final = 600.0


def tasks_app_name(task_class: TaskClass) -> str:
    return f"grix-tasks-{task_class}"


def tasks_apps(region: schema.Region) -> list[dict[str, Any]]:
    """One for each class of tasks that the region takes."""
    return [] if region.tasks is None else [_app(region, *one) for one in region.tasks.classes().items()]


def _app(region: schema.Region, task_class: TaskClass, workers: TaskWorkers) -> dict[str, Any]:
    assert region.tasks is not None
    return {
        "name": tasks_app_name(task_class),
        "route_prefix": None,
        "import_path": "deployments.app:build_tasks",
        "args": {"class": task_class},
        "deployments": [
            {
                "name": "TaskWorkers",
                "num_replicas": "auto",
                # Serve hands it to a task consumer as its concurrency; nobody calls it.
                "max_ongoing_requests": workers.concurrency,
                "autoscaling_config": {
                    "min_replicas": workers.min_workers,
                    "max_replicas": workers.max_workers,
                    "target_ongoing_requests": workers.concurrency,
                    "upscale_delay_s": 0,
                    "downscale_delay_s": QUIET_S,
                    "metrics_interval_s": TOLD_S,
                    "look_back_period_s": LOAD_WINDOW_S,
                    "policy": {"policy_function": POLICY, "policy_kwargs": {"region": region.name}},
                },
                "user_config": {
                    "region": region.model_dump(mode="json", by_alias=True, exclude_none=True),
                    "agent": workers.agent,
                    "limit_s": region.tasks.limit_s,
                    "engine_limit_s": region.tasks.engine_limit_s,
                    "scaling": {
                        "slots_per_replica": workers.concurrency,
                        "queue_above_ms": UP_MS,
                        "queue_below_ms": DOWN_MS,
                    },
                },
                "graceful_shutdown_timeout_s": SHUTDOWN_S,
                "health_check_period_s": 2.0,
                "ray_actor_options": {"num_cpus": THIN_CPUS},
            }
        ],
    }
