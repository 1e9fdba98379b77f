"""What the replicas of a region take of its cluster, from what Serve says of them look by look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.preempt import Amounts
from serve_app.edge.serve_apps import Apps, is_engine
from serve_app.edge.serve_rest import AppStatus, DeploymentStatus

#: What a replica takes where nothing else is written; Serve's own default.
_CPUS: Final = 1.0
_ENDS: Final = "STOPPING"


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


@dataclass(frozen=True, slots=True)
class Held:
    """A replica and what it takes, or will take where it has no node yet."""

    app: str
    deployment: str
    id: str
    state: str
    has_node: bool
    takes: Amounts

    @property
    def ends(self) -> bool:
        return self.state == _ENDS


class TakenRoom:
    """Remembers what Serve no longer says of replicas that are still there.

    It tells no replicas of an application that is deleted or built anew: those of the look before count until the
    application is gone. Nor does it tell which config a replica was started with: each takes what was written when it
    was first seen. What a RegionAgent finds in deletion when it starts, it does not know.
    """

    def __init__(self) -> None:
        self._parts: Mapping[str, tuple[DeploymentStatus, ...]] = {}
        self._takes: Mapping[str, Amounts] = {}

    def looked(self, apps: Apps, states: Mapping[str, AppStatus]) -> tuple[Held, ...]:
        """The replicas of all applications; all those of one that is deleted end."""
        self._parts = {name: state.deployments or self._parts.get(name, ()) for name, state in states.items()}
        held = []
        for name, parts in self._parts.items():
            is_deleted = states[name].status == "DELETING"
            written = {d["name"]: needs_of(d) for d in apps[name]["deployments"]} if name in apps else {}
            for part in parts:
                for one in part.each:
                    takes = self._takes.get(one.id) or written.get(part.name, {})
                    state = _ENDS if is_deleted else one.state
                    held.append(Held(name, part.name, one.id, state, one.has_node, takes))
        self._takes = {one.id: one.takes for one in held}
        return tuple(held)


def free_of(resources: Amounts, held: Iterable[Held]) -> dict[str, float]:
    """What no replica on a node takes. Ray's own view would count a replica whose process still starts as placed."""
    free = dict(resources)
    for one in held:
        for name, amount in one.takes.items() if one.has_node else ():
            free[name] = free.get(name, 0.0) - amount
    return free


def ending_of(held: Iterable[Held]) -> dict[str, float]:
    """What engines' replicas still take that end their calls. Of other applications the next replica takes it."""
    ending: dict[str, float] = {}
    for one in held:
        for name, amount in one.takes.items() if one.ends and one.has_node and is_engine(one.app) else ():
            ending[name] = ending.get(name, 0.0) + amount
    return ending
