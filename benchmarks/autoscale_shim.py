"""What Ray Serve does around an autoscaling policy, with a clock that is told: the one shim of this benchmark.

Serve's own wrapper reads ``time.time()``. Its steps are functions that take the time; here they are called in the
order of the wrapper, and the bounds after them as the controller does. ``tests/contract/test_autoscale_shim.py`` holds
both to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ray.serve._private.common import DeploymentID
from ray.serve.autoscaling_policy import (
    _apply_delay_logic,
    _apply_scaling_factors,
    _extract_internal_policy_state,
    _get_cold_start_scale_up_replicas,
)
from ray.serve.config import AutoscalingConfig, AutoscalingContext

Policy = Callable[[AutoscalingContext], tuple[float, dict[str, Any]]]

NOBODY: Final = DeploymentID(name="QwenAgent", app_name="benchmark")


class ServeScaler:
    """One deployment's autoscaling state, as Serve's controller keeps it."""

    def __init__(self, policy: Policy, config: AutoscalingConfig) -> None:
        self.config = config
        self._policy = policy
        self._state: dict[str, Any] = {}
        self._grown_s: float | None = None
        self._shrunk_s: float | None = None

    def step(
        self,
        now_s: float,
        running: int,
        target: int,
        ongoing: float,
        queued: float,
        raw_metrics: Mapping[str, Any] | None = None,
    ) -> int:
        """The new target, given what Serve has aggregated; called where the controller would decide."""
        context = self.context(now_s, running, target, ongoing, queued, raw_metrics)
        wanted = self.bounded(self._wrapped(context))
        if wanted > target:
            self._grown_s = now_s
        elif wanted < target:
            self._shrunk_s = now_s
        return wanted

    def context(
        self,
        now_s: float,
        running: int,
        target: int,
        ongoing: float,
        queued: float,
        raw_metrics: Mapping[str, Any] | None,
    ) -> AutoscalingContext:
        metrics = dict(raw_metrics or {})
        return AutoscalingContext(
            deployment_id=NOBODY,
            deployment_name=NOBODY.name,
            app_name=NOBODY.app_name,
            current_num_replicas=running,
            target_num_replicas=target,
            running_replicas=[],
            total_num_requests=ongoing,
            total_queued_requests=queued,
            aggregated_metrics=metrics,
            raw_metrics=metrics,
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=self._state.copy(),
            last_scale_up_time=self._grown_s,
            last_scale_down_time=self._shrunk_s,
            current_time=now_s,
            config=self.config,
        )

    def _wrapped(self, context: AutoscalingContext) -> int:
        """Cold start, policy, factors, delays: the steps of Serve's ``_apply_autoscaling_config``."""
        cold = _get_cold_start_scale_up_replicas(context)
        if cold is not None:
            return int(cold)
        wish, mine = self._policy(context)
        wanted = _apply_scaling_factors(wish, context.current_num_replicas, context.config)
        internal = _extract_internal_policy_state(context.policy_state)
        if not (context.current_num_replicas == 0 and wanted > 0):
            wanted, internal = _apply_delay_logic(
                max(0, wanted), context.target_num_replicas, context.config, internal, _now=context.current_time
            )
        self._state = {**mine, **internal}
        return math.ceil(wanted)

    def bounded(self, replicas: int) -> int:
        return max(self.config.min_replicas, min(self.config.max_replicas, replicas))
