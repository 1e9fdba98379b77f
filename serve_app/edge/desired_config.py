"""What a region's Serve config shall be, kept in a file, and put in force: the RegionAgent is its only writer.

Everything here blocks on the dashboard's HTTP, within limits: it is for a thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from cluster_configs import schema
from cluster_configs.bundle import Config
from serve_app.core.preempt import Ceiling
from serve_app.edge.fleet_documents import parsed
from serve_app.edge.private_file import write_private
from serve_app.edge.serve_apps import Apps, all_same, differing, in_force, unlike
from serve_app.edge.serve_config import render, use_redis, use_task_secret
from serve_app.edge.serve_rest import AppStatus, ServeRest, statuses

log = logging.getLogger("ray.serve")

_FILE: Final = "desired.json"
#: What was put and is told otherwise is put again after one look, then after two, four and so on, at most so many.
_MOST_LOOKS: Final = 32


class Refusal(NamedTuple):
    """A revision that was tried in vain; ``starts`` counts how often something was started for it."""

    revision: str
    why: str
    starts: int


@dataclass(frozen=True, slots=True)
class Desired:
    """What shall be in force now.

    ``fulfilled`` is what did last all that documents ask for, and ``revision`` names these, empty for those of the
    start; while others come into force, ``applications`` is a step on the way from there, and what a revision that
    fails goes back to is ``fulfilled``. ``confirmed``: ``applications`` are as Serve itself tells them, with the keys
    that it adds. Both are as documents ask for; ``lowered`` has the smaller maxima in force by application, ``again``
    by application and deployment how often Serve was made to try again what it had given up.
    """

    applications: Apps
    fulfilled: Apps
    revision: str = ""
    confirmed: bool = True
    lowered: Mapping[str, Ceiling] = field(default_factory=dict)
    again: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: Refusal | None = None

    @property
    def in_force(self) -> Apps:
        """The applications as Serve shall have them now."""
        return in_force(self.applications, self.lowered, self.again)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way."""
        return all_same(self.applications, self.fulfilled)


def rendered_with(user_config: Mapping[str, Any], documents: str) -> dict[str, Any]:
    """The Serve config that applied documents ask for in this region.

    Where parts of the federation are reached, and where its files are, stays as the region was started with: what
    listens and dials already would have to be started anew, and on one machine they are reached through a relay.

    Raises:
        ConfigError, ValueError: documents that are none, or tasks in a region whose own Redis would lose them.
        LookupError: the region is not in them, or carries no agent.
        ModelError: a local model is missing.
    """
    config = parsed(documents)
    began = schema.Federation.model_validate(user_config["federationDocument"])
    again = dict(user_config["again"])
    redis, secret = again.pop("redis", None), again.pop("task_secret", None)
    config = replace(config, federation=_where_it_was(config, began))
    name = user_config["region"]["name"]
    rendered = render(config, name, **again)
    if redis is not None:
        region = config.federation.region(name)
        if region is not None and region.tasks is not None and not redis["log"]:
            raise ValueError(
                f"region {name}: tasks: its own Redis was started without them, with less room and no log on disk: a "
                f"restart would lose every task; allowed: grix down {name}, then grix up {name} with tasks"
            )
        use_redis(rendered, redis["url"], redis["passwordFile"], log=redis["log"])
    if secret is not None:
        use_task_secret(rendered, secret)
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
        #: What Serve told right after a put of ours, where that was something else; looks since and until the next.
        self._unlike: Apps | None = None
        self._looks, self._pause_looks = 0, 1

    def begin(self) -> None:
        """Takes what the file says; without one, what is in force, which is what the region was started with.

        Raises:
            ServeRestError: when Serve does not answer; nothing is taken then.
        """
        self.desired = self._kept()
        if self.desired is not None:
            return
        deployed, _ = self._read()
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
            again = {str(n): {str(d): int(c) for d, c in tries.items()} for n, tries in kept.get("again", {}).items()}
            refused = kept.get("refused")
            if refused is not None:
                revision, why, starts = refused
                refused = Refusal(str(revision), str(why), int(starts))
            return Desired(apps, fulfilled, str(kept["revision"]), bool(kept["confirmed"]), lowered, again, refused)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not read, what is in force counts: %s", self._file, error)
            return None

    def put_back(self, top: Mapping[str, Any]) -> list[str]:
        """Undoes what somebody else has changed; the names of the applications that were not as they shall be.

        Raises:
            ServeRestError: when Serve does not answer, or refuses.
        """
        assert self.desired is not None
        deployed, vague = self._read()
        wanted = self.desired.in_force
        # A Serve that runs an application and does not know its config has lost its store for a moment.
        if not vague.isdisjoint(wanted):
            return []
        if self.desired.confirmed:
            foreign = differing(deployed, wanted)
            if foreign:
                self.put(self.desired.applications, top)
            return foreign
        if all_same(deployed, wanted):
            self._confirm(deployed)
            return []
        return self._put_again(deployed, top)

    def _put_again(self, deployed: Apps, top: Mapping[str, Any]) -> list[str]:
        """For a put of our own that did not come through, as far as is known, or that Serve tells otherwise.

        The latter is a foreign change when it is so for one put and not for the next. What Serve tells otherwise after
        every put is put ever more seldom, and a foreign change is what differs from that.
        """
        assert self.desired is not None
        self._looks += 1
        before = self._unlike
        foreign = [] if before is None else differing(deployed, before)
        if not foreign and self._looks < self._pause_looks:
            return []
        pause_looks = min(2 * self._pause_looks, _MOST_LOOKS)
        try:
            self.put(self.desired.applications, top)
        finally:
            self._pause_looks = pause_looks
        if before is not None and self.desired.confirmed:
            return unlike(deployed, self.desired.in_force)
        return foreign

    def put(self, applications: Apps, top: Mapping[str, Any], **kept: Any) -> None:
        """Puts applications in force, whole. Kept before it is put: whoever comes after a crash goes on with it.

        ``kept`` are other fields of what is desired, for the same write. It is confirmed only where Serve tells just
        this; where it does not, the next look goes on.

        Raises:
            ServeRestError: when Serve does not answer, or refuses.
        """
        assert self.desired is not None
        desired = replace(self.desired, applications=applications, confirmed=False, **kept)
        self._keep(replace(desired, again={n: tries for n, tries in desired.again.items() if n in applications}))
        self._unlike, self._looks, self._pause_looks = None, 0, 1
        wanted = self.desired.in_force
        self._rest.put_config({**top, "applications": list(wanted.values())})
        deployed, vague = self._read()
        if not vague.isdisjoint(wanted):
            return
        others = unlike(deployed, wanted)
        if others:
            self._unlike = deployed
            log.warning("Serve tells something else than was put of %s", ", ".join(others))
        else:
            self._confirm(deployed)

    def _confirm(self, deployed: Apps) -> None:
        """What Serve tells is what was put: what it adds of its own is no foreign change."""
        assert self.desired is not None
        told = {name: {**deployed[name], **app} for name, app in self.desired.applications.items()}
        self._keep(replace(self.desired, applications=told, confirmed=True))

    @property
    def remembers(self) -> bool:
        """Whether who comes after a restart knows what was lowered."""
        return self._file is not None

    def fulfils(self, revision: str, names: Collection[str]) -> None:
        """These applications, as they are in force, are what the documents of this revision ask for."""
        assert self.desired is not None
        fulfilled = {n: app for n, app in self.desired.applications.items() if n in names}
        self._keep(replace(self.desired, fulfilled=fulfilled, revision=revision))

    def refuse(self, refusal: Refusal | None) -> None:
        """Remembers the revision that was tried in vain, or that there is none any more."""
        assert self.desired is not None
        if refusal != self.desired.refused:
            self._keep(replace(self.desired, refused=refusal))

    def _read(self) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
        """Configs by application, and the applications that run without a config that Serve knows."""
        details = self._rest.details()
        staying = {n: a for n, a in (details.get("applications") or {}).items() if a.get("status") != "DELETING"}
        configs = {name: app.get("deployed_app_config") for name, app in staying.items()}
        deployed = {name: config for name, config in configs.items() if config is not None}
        self.seen = {status.name: status for status in statuses(details)}
        return deployed, frozenset(configs.keys() - deployed.keys())

    def _keep(self, desired: Desired) -> None:
        self.desired = desired
        if self._file is None:
            return
        write_private(self._file, json.dumps(asdict(desired)))
