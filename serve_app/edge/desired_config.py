"""What a region's Serve config shall be, kept in a file, and put in force: the RegionAgent is its only writer.

Everything here blocks on the dashboard's HTTP, within limits: it is for a thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.bundle import Config
from serve_app.core.preempt import Ceiling
from serve_app.edge.fleet_documents import parsed
from serve_app.edge.private_file import write_private
from serve_app.edge.serve_config import render, use_redis
from serve_app.edge.serve_rest import AppStatus, ServeRest, statuses

log = logging.getLogger("ray.serve")

#: Applications of one Serve config by name.
Apps = Mapping[str, Mapping[str, Any]]
_FILE: Final = "desired.json"


@dataclass(frozen=True, slots=True)
class Desired:
    """What shall be in force now.

    ``fulfilled`` is what did last all that documents ask for, and ``revision`` names these, empty for those of the
    start; while others come into force, ``applications`` is a step on the way from there, and what a revision that
    fails goes back to is ``fulfilled``. ``confirmed``: ``applications`` are as Serve itself tells them, with the keys
    that it adds. Both have the maxima that documents ask for; ``lowered`` has the smaller ones in force by
    application.
    """

    applications: Apps
    fulfilled: Apps
    revision: str = ""
    confirmed: bool = True
    lowered: Mapping[str, Ceiling] = field(default_factory=dict)

    @property
    def in_force(self) -> Apps:
        """The applications with the maxima that are in force."""
        return _lowered(self.applications, self.lowered)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""
        return all_same(self.applications, self.fulfilled)


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


def all_same(told: Apps, apps: Apps) -> bool:
    """The same of whole configs."""
    return told.keys() == apps.keys() and all(same(told[name], app) for name, app in apps.items())


def is_engine(app: str) -> bool:
    return "--" in app


def scaled(app: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The one deployment of an application that Serve scales, ``None`` without one."""
    return next((d for d in app["deployments"] if d.get("autoscaling_config")), None)


def _lowered(apps: Apps, ceilings: Mapping[str, Ceiling]) -> dict[str, Mapping[str, Any]]:
    """The applications, those that have a ceiling under it, as far as their minimum allows it."""
    made = dict(apps)
    for name in ceilings.keys() & apps.keys():
        one = scaled(apps[name])
        if one is not None:
            bounds = one["autoscaling_config"]
            smaller = max(bounds["min_replicas"], min(bounds["max_replicas"], ceilings[name].most))
            made[name] = _with(apps[name], one, smaller)
    return made


def _raised(told: Apps, asked: Apps, ceilings: Mapping[str, Ceiling]) -> dict[str, Mapping[str, Any]]:
    """What Serve tells, with the maxima that were asked for in place of the smaller ones in force."""
    made = dict(told)
    for name in ceilings.keys() & told.keys() & asked.keys():
        theirs, ours = scaled(told[name]), scaled(asked[name])
        if theirs is not None and ours is not None:
            made[name] = _with(told[name], theirs, ours["autoscaling_config"]["max_replicas"])
    return made


def _with(app: Mapping[str, Any], one: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """The application, with another maximum of this deployment of it."""
    changed = {**one, "autoscaling_config": {**one["autoscaling_config"], "max_replicas": most}}
    return {**app, "deployments": [changed if d is one else d for d in app["deployments"]]}


def rendered_with(user_config: Mapping[str, Any], documents: str) -> dict[str, Any]:
    """The Serve config that applied documents ask for in this region.

    Where parts of the federation are reached, and where its files are, stays as the region was started with: what
    listens and dials already would have to be started anew, and on one machine they are reached through a relay.

    Raises:
        ConfigError, ValueError: documents that are none.
        LookupError: the region is not in them, or carries no agent.
        ModelError: a local model is missing.
    """
    config = parsed(documents)
    began = schema.Federation.model_validate(user_config["federationDocument"])
    again = dict(user_config["again"])
    redis = again.pop("redis", None)
    config = replace(config, federation=_where_it_was(config, began))
    rendered = render(config, user_config["region"]["name"], **again)
    if redis is not None:
        use_redis(rendered, redis["url"], redis["passwordFile"])
    return rendered


def _where_it_was(config: Config, began: schema.Federation) -> schema.Federation:
    def region(new: schema.Region) -> schema.Region:
        old = began.region(new.name)
        kept = ("gateway", "gateway_listen", "http", "redis")
        return new if old is None else new.model_copy(update={name: getattr(old, name) for name in kept})

    spec = config.federation.spec
    update = {
        "coordinator": began.spec.coordinator,
        "pki": began.spec.pki,
        "regions": tuple(region(r) for r in spec.regions),
    }
    return config.federation.model_copy(update={"spec": spec.model_copy(update=update)})


class ConfigWriter:
    """Reads and writes the Serve config of one cluster. ``folder`` lives as long as the cluster; ``None``: no file."""

    def __init__(self, rest: ServeRest, folder: Path | None) -> None:
        self._rest = rest
        self._file = None if folder is None else folder / _FILE
        self.desired: Desired | None = None
        #: The applications' states as they were last read.
        self.seen: Mapping[str, AppStatus] = {}

    def begin(self) -> None:
        """Takes what the file says; without one, what is in force, which is what the region was started with.

        Raises:
            ServeRestError: when Serve does not answer; nothing is taken then.
        """
        self.desired = self._kept()
        if self.desired is not None:
            return
        deployed, _, _ = self._read()
        if deployed:
            self._keep(Desired(deployed, deployed))

    def _kept(self) -> Desired | None:
        if self._file is None or not self._file.is_file():
            return None
        try:
            kept = json.loads(self._file.read_text("utf-8"))
            apps = dict(kept["applications"])
            fulfilled = dict(kept.get("fulfilled", apps))
            lowered = {str(n): Ceiling(int(most), str(cause)) for n, (most, cause) in kept.get("lowered", {}).items()}
            return Desired(apps, fulfilled, str(kept["revision"]), bool(kept["confirmed"]), lowered)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not read, what is in force counts: %s", self._file, error)
            return None

    def put_back(self, top: Mapping[str, Any]) -> list[str]:
        """Undoes what somebody else has changed; the names of the applications that were not as they shall be.

        Raises:
            ServeRestError: when Serve does not answer, or refuses.
        """
        assert self.desired is not None
        deployed, _, vague = self._read()
        wanted = self.desired.in_force
        # A Serve that runs an application and does not know its config has lost its store for a moment.
        if not vague.isdisjoint(wanted):
            return []
        if not self.desired.confirmed:
            # A put of our own, of which it is not known whether it came through.
            if all_same(deployed, wanted):
                self._confirm(deployed)
            else:
                self.put(self.desired.applications, top)
            return []
        foreign = sorted(n for n in wanted.keys() | deployed.keys() if wanted.get(n) != deployed.get(n))
        if foreign:
            self.put(self.desired.applications, top)
        return foreign

    def put(self, applications: Apps, top: Mapping[str, Any]) -> None:
        """Puts applications in force, whole. Kept before it is put: whoever comes after a crash goes on with it.

        Raises:
            ServeRestError: when Serve does not answer, or refuses.
        """
        assert self.desired is not None
        self._keep(replace(self.desired, applications=applications, confirmed=False))
        self._rest.put_config({**top, "applications": list(self.desired.in_force.values())})
        # As Serve tells it: what it adds of its own is no foreign change.
        deployed, _, _ = self._read()
        self._confirm(deployed)

    def _confirm(self, deployed: Apps) -> None:
        assert self.desired is not None
        told = _raised(deployed, self.desired.applications, self.desired.lowered)
        self._keep(replace(self.desired, applications=told, confirmed=True))

    @property
    def remembers(self) -> bool:
        """Whether who comes after a restart knows what was lowered."""
        return self._file is not None

    def lower(self, ceilings: Mapping[str, Ceiling], top: Mapping[str, Any]) -> None:
        """These applications, and no others, have a smaller maximum than documents ask for. Raises as :meth:`put`."""
        assert self.desired is not None
        self._keep(replace(self.desired, lowered=dict(ceilings)))
        self.put(self.desired.applications, top)

    def fulfils(self, revision: str, names: Collection[str]) -> None:
        """These applications, as they are in force, are what the documents of this revision ask for."""
        assert self.desired is not None
        fulfilled = {n: app for n, app in self.desired.applications.items() if n in names}
        self._keep(replace(self.desired, fulfilled=fulfilled, revision=revision))

    def states(self) -> dict[str, AppStatus]:
        """The applications' states by name.

        Raises:
            ServeRestError: when Serve does not answer.
        """
        _, states, _ = self._read()
        return states

    def _read(self) -> tuple[dict[str, dict[str, Any]], dict[str, AppStatus], frozenset[str]]:
        """Configs and states by application, and the applications that run without a config that Serve knows."""
        details = self._rest.details()
        staying = {n: a for n, a in (details.get("applications") or {}).items() if a.get("status") != "DELETING"}
        configs = {name: app.get("deployed_app_config") for name, app in staying.items()}
        deployed = {name: config for name, config in configs.items() if config is not None}
        states = self.seen = {status.name: status for status in statuses(details)}
        return deployed, states, frozenset(configs.keys() - deployed.keys())

    def _keep(self, desired: Desired) -> None:
        self.desired = desired
        if self._file is None:
            return
        write_private(self._file, json.dumps(asdict(desired)))
