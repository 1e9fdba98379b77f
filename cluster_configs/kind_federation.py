"""Federation: the regions of one service, where they listen, and how they watch each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

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
    repeated,
    under,
)
from cluster_configs.quantities import format_duration

Role = Literal["primary", "secondary", "edge"]
Replicas = Annotated[int, Field(ge=1, le=1000)]


class Coordinator(Block):
    """Where regions dial the GlobalCoordinator."""

    address: Address


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


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("this is no absolute path; allowed: a path from / on, as Routers have folders of their own")
    return text


class Redis(Block):
    """The region's Redis: sessions, tenant limits, tasks. ``grix up`` starts one of its own where none is named."""

    url: Annotated[Text, AfterValidator(_redis_url)]
    #: A file with the password alone, on each node that runs a Router; read again whenever a bundle comes.
    password_file: Annotated[Text, AfterValidator(_absolute)] | None = None


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
    http: Http = Field(default_factory=Http)
    routers: Replicas = 1
    detector_placement: DetectorPlacement = "router"
    #: Replicas of the LanguageDetector where it is a deployment of its own.
    detectors: Replicas = 1
    redis: Redis | None = None
    admission: Admission = Field(default_factory=Admission)


class Health(Block):
    """How often the parts prove life, and how long silence is suffered."""

    heartbeat_s: Seconds = Field(default=1.0, alias="heartbeat")
    missed_heartbeats: Count = 3
    peer_beat_s: Seconds = Field(default=0.3, alias="peerBeat")
    peer_silence_s: Seconds = Field(default=1.0, alias="peerSilence")
    ping_s: Seconds = Field(default=2.0, alias="ping")


class FederationSpec(Block):
    """Regions in order of preference among equals. A single region needs no coordinator."""

    coordinator: Coordinator | None = None
    regions: Annotated[Items[Region], Field(min_length=1)]
    health: Health = Field(default_factory=Health)


class Federation(Document):
    """The document of kind Federation."""

    kind: Literal["Federation"] = "Federation"
    metadata: Metadata
    spec: FederationSpec

    def region(self, name: str) -> Region | None:
        """The region of this name."""
        return next((r for r in self.spec.regions if r.name == name), None)

    def problems(self) -> Iterator[Problem]:
        """Names and gateways twice, regions nobody can reach, beats slower than the silence they end."""
        regions = self.spec.regions
        for i, first in repeated([r.name for r in regions]):
            yield Problem(
                under("regions", i, "name"),
                f"'{regions[i].name}' is the name of regions[{first}] too; names are unique",
                (under("regions", i, "name"), under("regions", first, "name")),
            )
        with_gateway = [i for i, r in enumerate(regions) if r.gateway is not None]
        for i, first in repeated([str(regions[i].gateway) for i in with_gateway]):
            here, there = with_gateway[i], with_gateway[first]
            yield Problem(
                under("regions", here, "gateway"),
                f"'{regions[here].gateway}' is the gateway of {regions[there].name} too; each region has its own",
                (under("regions", here, "gateway"), under("regions", there, "gateway")),
            )
        for i, region in enumerate(regions):
            for j, first in repeated(list(region.residency)):
                yield Problem(
                    under("regions", i, "residency", j),
                    f"'{region.residency[j]}' is written twice; it is residency[{first}] too",
                    (under("regions", i, "residency"),),
                )
            if "any" in region.residency:
                yield Problem(
                    under("regions", i, "residency"),
                    "'any' is no zone of a region; allowed: the zones its hardware lies in, such as eu or sg",
                    (under("regions", i, "residency"),),
                )
            yield from _http_problems(i, region.http)
            if len(regions) > 1 and region.accepts_spill and region.gateway is None:
                yield Problem(
                    under("regions", i),
                    "the region accepts spill but has no gateway, so no peer can reach it; "
                    'write gateway: "HOST:PORT" or acceptsSpill: false',
                    (under("regions", i, "gateway"), under("regions", i, "acceptsSpill")),
                )
        if len(regions) > 1 and self.spec.coordinator is None:
            yield Problem(
                under("coordinator"),
                f'{len(regions)} regions need a coordinator; write coordinator: {{address: "HOST:PORT"}}',
                (under("coordinator"), under("regions")),
            )
        health = self.spec.health
        if health.peer_silence_s <= health.peer_beat_s:
            yield Problem(
                under("health", "peerSilence"),
                f"{format_duration(health.peer_silence_s)} is not longer than peerBeat "
                f"{format_duration(health.peer_beat_s)}, so a healthy peer would be suspect; allowed: more than that",
                (under("health", "peerSilence"), under("health", "peerBeat")),
            )


def _http_problems(i: int, http: Http) -> Iterator[Problem]:
    if http.profile == "fast" and http.tls is not None:
        yield Problem(
            under("regions", i, "http", "tls"),
            "HAProxy of profile fast speaks no TLS; allowed with profile: standard",
            (under("regions", i, "http", "tls"), under("regions", i, "http", "profile")),
        )
    if http.profile == "standard" and http.expose_haproxy_ports:
        yield Problem(
            under("regions", i, "http", "exposeHaproxyPorts"),
            "has no effect without profile: fast; allowed: leave it out",
            (under("regions", i, "http", "exposeHaproxyPorts"), under("regions", i, "http", "profile")),
        )
