"""Contradictions inside one Federation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cluster_configs.faults import Problem
from cluster_configs.fields import repeated, under
from cluster_configs.quantities import format_duration
from serve_app.core.health import IDLE_FRESH_S
from serve_app.core.target_health import FORGET_S

if TYPE_CHECKING:
    from cluster_configs.kind_federation import Federation, FederationSpec, Http, Region

#: A replica reports each second: one report may be lost.
LEAST_STALE_S: Final = 2.0
MOST_PING_S: Final = IDLE_FRESH_S


def of(federation: Federation) -> Iterator[Problem]:
    """Names and gateways twice, regions nobody can reach, beats slower than the silence they end."""
    spec = federation.spec
    regions = spec.regions
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
    yield from _listen_problems(spec)
    for i, region in enumerate(regions):
        yield from _residency_problems(i, region)
        yield from _http_problems(i, region.http)
        yield from _tasks_problems(i, region)
        if len(regions) > 1 and region.accepts_spill and region.gateway is None:
            yield Problem(
                under("regions", i),
                "the region accepts spill but has no gateway, so no peer can reach it; "
                'write gateway: "HOST:PORT" or acceptsSpill: false',
                (under("regions", i, "gateway"), under("regions", i, "acceptsSpill")),
            )
    if len(regions) > 1 and spec.coordinator is None:
        yield Problem(
            under("coordinator"),
            f'{len(regions)} regions need a coordinator; write coordinator: {{address: "HOST:PORT"}}',
            (under("coordinator"), under("regions")),
        )
    health = spec.health
    if health.peer_silence_s <= health.peer_beat_s:
        yield Problem(
            under("health", "peerSilence"),
            f"{format_duration(health.peer_silence_s)} is not longer than peerBeat "
            f"{format_duration(health.peer_beat_s)}, so a healthy peer would be suspect; allowed: more than that",
            (under("health", "peerSilence"), under("health", "peerBeat")),
        )
    if not LEAST_STALE_S <= health.stale_after_s <= FORGET_S:
        yield Problem(
            under("health", "staleAfter"),
            f"{format_duration(health.stale_after_s)} is out of range; allowed: {format_duration(LEAST_STALE_S)}, as a "
            f"replica reports each second, to {format_duration(FORGET_S)}, when a silent one is forgotten",
            (under("health", "staleAfter"),),
        )
    if health.ping_s > MOST_PING_S:
        yield Problem(
            under("health", "ping"),
            f"{format_duration(health.ping_s)} is out of range; allowed: at most {format_duration(MOST_PING_S)}, after "
            "which an idle engine proves itself too",
            (under("health", "ping"),),
        )


def _residency_problems(i: int, region: Region) -> Iterator[Problem]:
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


def _listen_problems(spec: FederationSpec) -> Iterator[Problem]:
    """Addresses that mean two things, or nothing."""
    coordinator = spec.coordinator
    for i, region in enumerate(spec.regions):
        if region.gateway is None and region.gateway_listen is not None:
            yield Problem(
                under("regions", i, "gatewayListen"),
                "has no effect without gateway; allowed: leave it out, or write where peers reach the region",
                (under("regions", i, "gatewayListen"),),
            )
        if coordinator is not None and region.gateway == coordinator.address:
            yield Problem(
                under("regions", i, "gateway"),
                f"'{region.gateway}' is the coordinator's address too; each has its own",
                (under("regions", i, "gateway"), under("coordinator", "address")),
            )
    if coordinator is not None and coordinator.store is not None:
        store = coordinator.store
        if store.folder is not None and store.password_file is not None:
            yield Problem(
                under("coordinator", "store", "passwordFile"),
                "has no effect with a folder; allowed: leave it out, or write url: redis://HOST:PORT",
                (under("coordinator", "store", "passwordFile"), under("coordinator", "store", "url")),
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


def _tasks_problems(i: int, region: Region) -> Iterator[Problem]:
    if region.tasks is None:
        return
    at = under("regions", i, "tasks")
    if not region.tasks.classes():
        yield Problem(at, "nobody works at tasks; write light: {agent: NAME}, heavy: {agent: NAME} or both", (at,))
    within = (("readLimit", region.tasks.read_limit_s), ("engineLimit", region.tasks.engine_limit_s))
    for field, limit_s in within:
        if limit_s is not None and limit_s > region.tasks.limit_s:
            said = f"{limit_s:g}s is longer than limit, {region.tasks.limit_s:g}s; allowed: as long or shorter"
            yield Problem((*at, field), said, ((*at, field), (*at, "limit")))
    for name, workers in region.tasks.classes().items():
        if workers.max_workers < workers.min_workers:
            most = (*at, name, "maxWorkers")
            yield Problem(
                most,
                f"{workers.max_workers} is less than minWorkers {workers.min_workers}; allowed: as many or more",
                (most, (*at, name, "minWorkers")),
            )
