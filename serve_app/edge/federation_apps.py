"""What a federation adds to Serve configs: app ``grix-region`` in each region, and the control cluster's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.bundle import Config, to_document, to_documents

REGION_APP: Final = "grix-region"
CONTROL_APP: Final = "grix-control"
#: Where certificates are looked for when the Federation names no folder.
PKI_FOLDER: Final = "/etc/grix/pki"
#: A slice of a core for the thin deployments, so that a two-core machine can hold them all.
THIN_CPUS: Final = 0.1
#: Long polls and pushes wait in RegionAgent by the hundred; a limit would be a hidden queue.
UNLIMITED_ONGOING: Final = 10_000
#: What has nothing to drain is ended soon.
SOON_S: Final = 5.0


def pki_folder(config: Config) -> str:
    """The folder of this federation's certificates, the same path on each machine."""
    pki = config.federation.spec.pki
    return PKI_FOLDER if pki is None else pki.folder


def region_app(
    config: Config,
    region: schema.Region,
    user_config: Mapping[str, Any],
    total_s: float,
    *,
    again: Mapping[str, Any],
    top: Mapping[str, Any],
) -> dict[str, Any]:
    """App ``grix-region``. ``user_config`` is Router's.

    One gateway in a region, not one in each node: peers know a region by one address.

    RegionAgent writes the region's Serve config from then on: ``again`` is what it renders with, and ``top`` what
    stands above the applications.
    """
    spec = config.federation.spec
    assert spec.coordinator is not None
    document = to_document(config.federation)
    identity = f"{pki_folder(config)}/region/{region.name}"
    fleet = {"name": config.federation.metadata.name, **{key: document["spec"][key] for key in ("regions", "health")}}
    gateway = {
        "name": "RegionGateway",
        "num_replicas": 1,
        "max_replicas_per_node": 1,
        "max_ongoing_requests": UNLIMITED_ONGOING,
        "graceful_shutdown_timeout_s": total_s,
        "health_check_period_s": 2.0,
        "user_config": {
            **user_config,
            "federation": fleet,
            "pkiFolder": identity,
            "listen": region.gateway_listens_at,
        },
        "ray_actor_options": {"num_cpus": THIN_CPUS},
    }
    agent = {
        "name": "RegionAgent",
        "num_replicas": 1,
        "max_ongoing_requests": UNLIMITED_ONGOING,
        "graceful_shutdown_timeout_s": SOON_S,
        "health_check_period_s": 2.0,
        "user_config": {
            **user_config,
            "federationDocument": document,
            "pkiFolder": identity,
            "coordinator": spec.coordinator.address,
            "again": dict(again),
            "top": dict(top),
        },
        "ray_actor_options": {"num_cpus": THIN_CPUS},
    }
    return {
        "name": REGION_APP,
        "route_prefix": None,
        "import_path": "deployments.app:build_region",
        "args": {},
        "deployments": [gateway, agent],
    }


def control_config(config: Config, user_config: Mapping[str, Any]) -> dict[str, Any]:
    """The Serve config of the control cluster: one GlobalCoordinator, and no HTTP."""
    coordinator = {
        "name": "GlobalCoordinator",
        "num_replicas": 1,
        "max_ongoing_requests": UNLIMITED_ONGOING,
        "graceful_shutdown_timeout_s": SOON_S,
        "health_check_period_s": 2.0,
        "user_config": {
            "documents": to_documents(config),
            "pkiFolder": f"{pki_folder(config)}/coordinator",
            "logLevel": "INFO",
            **user_config,
        },
        "ray_actor_options": {"num_cpus": THIN_CPUS},
    }
    app = {
        "name": CONTROL_APP,
        "route_prefix": None,
        "import_path": "deployments.app:build_control",
        "args": {},
        "deployments": [coordinator],
    }
    return {"proxy_location": "Disabled", "logging_config": {"enable_access_log": False}, "applications": [app]}
