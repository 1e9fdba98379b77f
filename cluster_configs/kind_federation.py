"""Federation: the regions of one service, where they listen, and how they watch each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from cluster_configs import federation_problems
from cluster_configs.faults import Problem
from cluster_configs.fields import (
    Address,
    Block,
    Count,
    Document,
    Items,
    Metadata,
    Name,
    Port,
    Ratio,
    Seconds,
    Text,
    Word,
    absolute,
)
from cluster_configs.kind_rollout import Rollout
from cluster_configs.kind_tasks import Tasks
from serve_app.core.reports import FRESH_S

Role = Literal["primary", "secondary", "edge"]
Replicas = Annotated[int, Field(ge=1, le=1000)]


#: ``standard`` is Serve's own proxy, which speaks TLS; ``fast`` is HAProxy and Ray's throughput flags.
IngressProfile = Literal["standard", "fast"]
#: Whether the LanguageDetector is a deployment of its own, which scales apart, or runs in each Router.
DetectorPlacement = Literal["router", "deployment"]


class Tls(Block):
    """Certificate and key of the HTTP entry, as files in PEM on the region's head node."""

    cert_file: Text
    key_file: Text


class Http(Block):
    """Where a region's own HTTP entry listens. Loopback unless written, so that a first try is not public."""

    host: Text = "127.0.0.1"
    port: Port = 8000
    profile: IngressProfile = "standard"
    #: HAProxy's statistics and the Routers behind it listen on every interface: where others can reach the machine,
    #: ``fast`` starts only with this written.
    expose_haproxy_ports: bool = False
    tls: Tls | None = None


_REDIS: Final = re.compile(r"rediss?://[^\s/@:?#]+:\d{1,5}(?:/\d{1,3})?", re.ASCII)


def _redis_url(text: str) -> str:
    if "@" in text:
        # The value is not repeated: it may hold a password.
        raise ValueError("user or password stand in the address; write the password into a file, see passwordFile")
    if _REDIS.fullmatch(text) is None:
        raise ValueError("this is no address of a Redis; allowed: redis://HOST:PORT, rediss://HOST:PORT/NUMBER")
    return text


def _store_url(text: str) -> str:
    if text.startswith("file://"):
        return "file://" + absolute(text.removeprefix("file://"))
    try:
        return _redis_url(text)
    except ValueError as error:
        raise ValueError(f"{error}, file:///FOLDER") from None


class Store(Block):
    """Where the coordinator keeps what it cannot learn again from reports: drains, documents, the audit log."""

    #: A folder that outlives the coordinator's machine, or a Redis.
    url: Annotated[Text, AfterValidator(_store_url)]
    #: Of a Redis: a file with the password alone, on the coordinator's machine.
    password_file: Annotated[Text, AfterValidator(absolute)] | None = None

    @property
    def folder(self) -> str | None:
        """The folder, where it is one."""
        return self.url.removeprefix("file://") if self.url.startswith("file://") else None


def listen_address(address: str) -> str:
    """Where to listen to be reached at ``address``: there where its host is an IP, else on all interfaces."""
    host, _, port = address.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return f"[::]:{port}"
    return address


class Coordinator(Block):
    """Where regions dial the GlobalCoordinator, and what it keeps."""

    address: Address
    #: Where it listens, if not at that address as its own machine sees it; see :func:`listen_address`.
    listen: Address | None = None
    #: Without one ``grix up`` keeps a folder of its own.
    store: Store | None = None

    @property
    def listens_at(self) -> str:
        return self.listen or listen_address(self.address)


class Pki(Block):
    """Certificates of this federation, as files on each machine: see :mod:`serve_app.edge.pki`."""

    #: Holds a folder for each identity that runs on the machine: ``coordinator``, ``region/NAME``, ``operator/NAME``.
    folder: Annotated[Text, AfterValidator(absolute)]


class Redis(Block):
    """The region's Redis: sessions, tenant limits, tasks. ``grix up`` starts one of its own where none is named."""

    url: Annotated[Text, AfterValidator(_redis_url)]
    #: A file with the password alone, on each node that runs a Router; read again whenever a bundle comes.
    password_file: Annotated[Text, AfterValidator(absolute)] | None = None


class Admission(Block):
    """What no caller may take alone. A request of batch work is one whose ``task_type`` is ``batch``, or whose tenant
    has a lower priority than ``batch_priority_below``."""

    #: Of an engine's slots (``maxNumSeqs`` of ``minReplicas``), for all batch work together.
    batch_share: Ratio = 0.5
    batch_priority_below: Annotated[int, Field(ge=0, le=1000)] = 50
    #: How many requests of one trace or one session may run at once.
    slots_per_root: Count = 16


class Region(Block):
    """One Ray cluster in one place."""

    name: Name
    cloud: Name
    location: Word
    gpu_hour_usd: Annotated[float, Field(ge=0, le=10_000)]
    role: Role
    #: Zones this region's hardware lies in; a tenant's data goes only to a region that shares one.
    residency: Items[Name] = ()
    accepts_spill: bool = True
    #: Where peers reach this region's RegionGateway; ``None``: nowhere.
    gateway: Address | None = None
    #: Where the RegionGateway listens, if not at that address as its own node sees it; see :func:`listen_address`.
    gateway_listen: Address | None = None
    http: Http = Field(default_factory=Http)
    routers: Replicas = 1
    detector_placement: DetectorPlacement = "router"
    #: Replicas of the LanguageDetector where it is a deployment of its own.
    detectors: Replicas = 1
    redis: Redis | None = None
    admission: Admission = Field(default_factory=Admission)
    #: Without it the region takes no tasks.
    tasks: Tasks | None = None

    @property
    def gateway_listens_at(self) -> str | None:
        """``None`` in a region that no peer can reach."""
        return None if self.gateway is None else self.gateway_listen or listen_address(self.gateway)


class Health(Block):
    """How often the parts prove life, and how long silence is suffered.

    ``ping_s``: an engine at work whose last token is older proves itself anew. ``stale_after_s``: a report that is
    older is no data.
    """

    heartbeat_s: Seconds = Field(default=1.0, alias="heartbeat")
    missed_heartbeats: Count = 3
    peer_beat_s: Seconds = Field(default=0.3, alias="peerBeat")
    peer_silence_s: Seconds = Field(default=1.0, alias="peerSilence")
    link_timeout_s: Seconds = Field(default=10.0, alias="linkTimeout")
    ping_s: Seconds = Field(default=2.0, alias="ping")
    stale_after_s: Seconds = Field(default=FRESH_S, alias="staleAfter")


class FederationSpec(Block):
    """Regions in order of preference among equals. A single region needs no coordinator."""

    coordinator: Coordinator | None = None
    #: Without it ``grix up`` makes certificates of its own, good on one machine.
    pki: Pki | None = None
    regions: Annotated[Items[Region], Field(min_length=1)]
    health: Health = Field(default_factory=Health)
    rollout: Rollout = Field(default_factory=Rollout)


class Federation(Document):
    """The document of kind Federation."""

    kind: Literal["Federation"] = "Federation"
    metadata: Metadata
    spec: FederationSpec

    def region(self, name: str) -> Region | None:
        """The region of this name."""
        return next((r for r in self.spec.regions if r.name == name), None)

    def problems(self) -> Iterator[Problem]:
        yield from federation_problems.of(self)
