"""Makes room for more important agents: what Serve says of replicas in, ``core.preempt`` decides, smaller maxima out.

The maxima are part of the region's Serve config as its writer keeps it, so that they are no foreign change, and whoever
comes after a restart finds them and gives them back: five minutes after it began, unless they are needed still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from serve_app.core.names import agent_of
from serve_app.core.preempt import Amounts, Ceiling, Decision, Engine, Lowered, Memory, decide
from serve_app.edge.agent_app import PRIORITY
from serve_app.edge.desired_config import Apps, ConfigWriter, is_engine, scaled
from serve_app.edge.serve_rest import AppStatus

log = logging.getLogger("ray.serve")

#: What a replica takes where nothing else is written; Serve's own default.
_CPUS: Final = 1.0


def needs_of(deployment: Mapping[str, Any]) -> dict[str, float]:
    """What one replica of a deployment takes, by Ray's names, as its Serve config says."""
    bundles = deployment.get("placement_group_bundles")
    if bundles:
        names = {name for bundle in bundles for name in bundle}
        return {name: float(sum(bundle.get(name, 0.0) for bundle in bundles)) for name in names}
    options = deployment.get("ray_actor_options") or {}
    cpus = options.get("num_cpus")
    amounts = {
        "CPU": _CPUS if cpus is None else cpus,
        "GPU": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    return {name: float(amount) for name, amount in amounts.items() if amount}


def _counted(state: AppStatus | None, deployment: str) -> tuple[int, int, int]:
    """Replicas of a deployment that have a node, those of them that end, and those without one."""
    parts = () if state is None else state.deployments
    for part in parts:
        if part.name == deployment:
            leaving = part.replicas.get("STOPPING", 0)
            return sum(part.replicas.values()) - leaving - part.unplaced, leaving, part.unplaced
    return 0, 0, 0


def engines_of(apps: Apps, states: Mapping[str, AppStatus]) -> Iterator[Engine]:
    """The engines that can give way or need room; one whose config says no priority is of an older version."""
    for name, app in apps.items():
        one = scaled(app) if is_engine(name) else None
        priority = None if one is None else (one.get("user_config") or {}).get(PRIORITY)
        if one is None or priority is None:
            continue
        placed, leaving, pending = _counted(states.get(name), one["name"])
        yield Engine(
            app=name,
            priority=int(priority),
            min_replicas=one["autoscaling_config"]["min_replicas"],
            max_replicas=one["autoscaling_config"]["max_replicas"],
            needs=needs_of(one),
            placed=placed,
            leaving=leaving,
            pending=pending,
        )


def free_of(resources: Amounts, apps: Apps, states: Mapping[str, AppStatus]) -> dict[str, float]:
    """What no placed replica takes. Ray's own view would count a replica whose process still starts as placed."""
    free = dict(resources)
    for name, app in apps.items():
        for deployment in app["deployments"]:
            placed, leaving, _ = _counted(states.get(name), deployment["name"])
            for resource, amount in needs_of(deployment).items():
                free[resource] = free.get(resource, 0.0) - (placed + leaving) * amount
    return free


def said(ceiling: Ceiling) -> str:
    """A ceiling for people."""
    return f"at most {ceiling.most} replica{'s' * (ceiling.most != 1)}, for {agent_of(ceiling.cause)}"


class Preemption:
    """One region's. ``resources`` are the cluster's in all, by name; nothing is decided while nobody knows them.

    ``on_decision`` hears of each decision. Blocking work is done in threads, one after the other.
    """

    def __init__(
        self,
        writer: ConfigWriter,
        *,
        now_s: Callable[[], float],
        resources: Callable[[], Amounts],
        on_decision: Callable[[Decision], None],
    ) -> None:
        self._writer, self._now_s, self._resources = writer, now_s, resources
        self._on_decision = on_decision
        self._memory: Memory | None = None
        self._short: Mapping[str, int] = {}

    @property
    def is_urgent(self) -> bool:
        """Whether a replica finds no room: then it is looked again soon."""
        return self._memory is not None and bool(self._memory.missing_s)

    def told(self) -> list[str]:
        """What operators have to know of it now."""
        short = [f"{agent_of(app)} wants {count} more than there is room for" for app, count in self._short.items()]
        if self._memory is None:
            return short
        ceilings = self._memory.ceilings
        return [f"{agent_of(app)} has {said(ceiling)}" for app, ceiling in ceilings.items()] + short

    async def look(self, top: Mapping[str, Any]) -> None:
        """One look at what the writer last read of Serve, and the change that follows from it.

        Raises:
            ServeRestError: Serve does not answer or refuses; the writer puts what it has kept with its next look.
        """
        desired, now_s = self._writer.desired, self._now_s()
        # Without a file nobody could tell after a restart what was lowered from what was asked for.
        if desired is None or not self._writer.remembers:
            return
        resources = await asyncio.to_thread(self._resources)
        if not resources:
            return
        if self._memory is None:
            self._memory = Memory({app: Lowered(ceiling, now_s) for app, ceiling in desired.lowered.items()})
        apps, states = desired.applications, self._writer.seen
        decision = decide(engines_of(apps, states), free_of(resources, apps, states), self._memory, now_s)
        self._memory, self._short = decision.memory, decision.short
        change = decision.change
        if change is not None:
            why = f"{change.cause} needs the room" if change.cause is not None else "nobody needs the room any more"
            log.warning("at most %d replicas of %s instead of %d: %s", change.after, change.app, change.before, why)
        self._on_decision(decision)
        # What was kept and could not be put, or not be read back, is put again.
        if decision.memory.ceilings != desired.lowered or not desired.confirmed:
            await asyncio.to_thread(self._writer.lower, decision.memory.ceilings, top)
