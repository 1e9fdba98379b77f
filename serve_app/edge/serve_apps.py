"""Applications of a Serve config: compared, on the way to others, and with what is in force for now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.core.preempt import Ceiling
from serve_app.edge.agent_app import START_LIMIT

#: Applications of one Serve config by name.
Apps = Mapping[str, Mapping[str, Any]]
#: How long applications without a limit of their own may take until they run; engines have one.
RUNNING_LIMIT_S: Final = 900.0
#: How long a replica that ends waits between two looks whether its calls have ended, and Serve's own default.
_WAIT_LOOP: Final = "graceful_shutdown_wait_loop_s"
_WAIT_LOOP_S: Final = 2.0


def by_name(applications: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {app["name"]: app for app in applications}


def steps(old: Apps, new: Apps) -> list[dict[str, Mapping[str, Any]]]:
    """The configs on the way from one to the other, so that there is an engine for every request at every moment.

    New engines start beside the old ones; then Routers name the new ones; what they name no longer is deleted last.
    The last but one is in force for Routers, the last only cleans up.
    """
    begun = {name: app for name, app in new.items() if is_engine(name) and name not in old}
    left = {name: app for name, app in old.items() if is_engine(name) and name not in new}
    first = [{**old, **begun}] if begun else []
    return [*first, {**new, **left}, dict(new)]


def same(told: Mapping[str, Any], app: Mapping[str, Any]) -> bool:
    """Whether what Serve tells of an application is this one; it adds keys of its own."""
    return all(told.get(key) == value for key, value in app.items())


def unlike(told: Apps, apps: Apps) -> list[str]:
    """The applications that are in one of two whole configs only, or not the same."""
    names = told.keys() | apps.keys()
    return sorted(n for n in names if n not in told or n not in apps or not same(told[n], apps[n]))


def all_same(told: Apps, apps: Apps) -> bool:
    return not unlike(told, apps)


def differing(some: Apps, others: Apps) -> list[str]:
    """The applications that are not exactly alike in two whole configs."""
    return sorted(n for n in some.keys() | others.keys() if some.get(n) != others.get(n))


def is_engine(app: str) -> bool:
    return "--" in app


def scaled(app: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The one deployment of an application that Serve scales, ``None`` without one."""
    return next((d for d in app["deployments"] if d.get("autoscaling_config")), None)


def start_limit_s(app: Mapping[str, Any]) -> float:
    """How long an application may take until it runs."""
    own = [(d.get("user_config") or {}).get(START_LIMIT) for d in app["deployments"]]
    return max((float(limit_s) for limit_s in own if limit_s is not None), default=RUNNING_LIMIT_S)


def in_force(
    apps: Apps, lowered: Mapping[str, Ceiling], again: Mapping[str, Mapping[str, int]]
) -> dict[str, Mapping[str, Any]]:
    """The applications with what is in force for now.

    Those that have a ceiling are under it, as far as their minimum allows it. ``again`` has by application and
    deployment how often Serve was made to try again: it does so only for a deployment whose config differs, and
    how long a replica waits between two looks at its end may differ without a difference.
    """
    made = dict(apps)
    for name in (lowered.keys() | again.keys()) & apps.keys():
        most = lowered[name].most if name in lowered else None
        tries = again.get(name, {})
        made[name] = {
            **apps[name],
            "deployments": [_in_force(d, most, tries.get(d["name"], 0)) for d in apps[name]["deployments"]],
        }
    return made


def _in_force(deployment: Mapping[str, Any], most: int | None, tries: int) -> Mapping[str, Any]:
    made = dict(deployment)
    bounds = made.get("autoscaling_config")
    if bounds and most is not None:
        made["autoscaling_config"] = {
            **bounds,
            "max_replicas": max(bounds["min_replicas"], min(bounds["max_replicas"], most)),
        }
    if tries:
        made[_WAIT_LOOP] = round(made.get(_WAIT_LOOP, _WAIT_LOOP_S) + tries / 1000, 3)
    return made
