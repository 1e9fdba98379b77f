"""Serve's REST interface on a cluster's dashboard: put a config, read what became of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_PATH: Final = "/api/serve/applications/"
_NODES: Final = "/api/v0/nodes"
#: Without proxies: the dashboard is on this machine, whatever the environment says about the way out.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
BROKEN: Final = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})


class ServeRestError(Exception):
    """The dashboard cannot be reached or refuses. ``status`` is the HTTP status, ``None`` without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica; one that has no node yet, or ends before it had one, takes nothing of any."""

    id: str
    state: str
    has_node: bool


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A deployment: its state, the replicas wanted (``None``: not told) and those there."""

    name: str
    status: str
    message: str
    target_replicas: int | None
    each: tuple[ReplicaStatus, ...]

    @property
    def replicas(self) -> dict[str, int]:
        """How many there are by state."""
        return dict(Counter(replica.state for replica in self.each))


@dataclass(frozen=True, slots=True)
class AppStatus:
    """An application and its deployments."""

    name: str
    status: str
    message: str
    deployments: tuple[DeploymentStatus, ...] = field(default=())

    @property
    def told(self) -> str:
        """Everything that Serve says about it, the deployments' words included."""
        said = [self.message, *(f"{d.name}: {d.message}" for d in self.deployments if d.message)]
        return "\n".join(s.strip() for s in said if s.strip())


@dataclass(frozen=True, slots=True)
class ServeRest:
    """One cluster's dashboard, ``http://HOST:PORT``, and the token that opens it."""

    dashboard: str
    token: str = field(repr=False)

    def put_config(self, config: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        """Makes ``config`` the cluster's whole Serve config; applications that are not in it are deleted."""
        self._ask("PUT", _PATH, json.dumps(config).encode(), timeout_s)

    def details(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """Serve's own picture of itself."""
        answer = self._ask("GET", _PATH, None, timeout_s)
        if not isinstance(answer, dict):
            raise ServeRestError(f"{self.dashboard}{_PATH}: the answer is no JSON object")
        return answer

    def status(self, timeout_s: float = 5.0) -> list[AppStatus]:
        """The applications by name."""
        return statuses(self.details(timeout_s))

    def nodes(self, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        """The cluster's nodes, in the form of ``ray.nodes()``, which only a process inside the cluster may ask."""
        answer = self._ask("GET", _NODES, None, timeout_s)
        try:
            rows = [
                {
                    "NodeID": row["node_id"],
                    "NodeName": row["node_name"],
                    "Alive": row["state"] == "ALIVE",
                    "Resources": row["resources_total"],
                    "Labels": row["labels"],
                }
                for row in answer["data"]["result"]["result"]
            ]
        except (KeyError, TypeError) as error:
            raise ServeRestError(f"{self.dashboard}{_NODES}: the answer is no list of nodes ({error!r})") from None
        return rows

    def delete(self, timeout_s: float = 30.0) -> None:
        """Deletes every application."""
        self._ask("DELETE", _PATH, None, timeout_s)

    def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Any:
        request = urllib.request.Request(self.dashboard + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        try:
            with _OPENER.open(request, timeout=timeout_s) as answer:
                text = answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace").strip()
            raise ServeRestError(f"{method} {self.dashboard}{path}: {error.code} {said[-2000:]}", error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServeRestError(f"{method} {self.dashboard}{path}: no answer ({reason})") from None
        try:
            return json.loads(text) if text else {}
        except ValueError:
            return text


def statuses(details: Mapping[str, Any]) -> list[AppStatus]:
    """Serve's details, as far as a person wants to see them."""
    apps = details.get("applications") or {}
    return [_app(name, apps[name]) for name in sorted(apps)]


def _app(name: str, app: Mapping[str, Any]) -> AppStatus:
    deployments = app.get("deployments") or {}
    parts = tuple(_deployment(n, deployments[n]) for n in sorted(deployments))
    return AppStatus(name, str(app.get("status", "UNKNOWN")), str(app.get("message") or ""), parts)


def _deployment(name: str, deployment: Mapping[str, Any]) -> DeploymentStatus:
    return DeploymentStatus(
        name,
        str(deployment.get("status", "UNKNOWN")),
        str(deployment.get("message") or ""),
        deployment.get("target_num_replicas"),
        tuple(_replica(replica) for replica in deployment.get("replicas") or []),
    )


def _replica(replica: Mapping[str, Any]) -> ReplicaStatus:
    state = str(replica.get("state", "UNKNOWN"))
    has_node = replica.get("node_id") is not None or state not in ("STARTING", "STOPPING")
    return ReplicaStatus(str(replica.get("replica_id", "")), state, has_node)
