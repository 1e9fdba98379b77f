"""One region of a federation brought up on this machine: by ``grix up``, and by a drill that has killed it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import certificates, clusters, documents, links, memory, region_redis, regions
from serve_app.cli.say import BAD_USAGE, Failed, Progress
from serve_app.cli.state import Home, own_tenant

if TYPE_CHECKING:
    from cluster_configs.load import Config
    from cluster_configs.schema import Region

#: Ray's variable for the labels of a node that it starts, as JSON.
LABELS_VARIABLE: Final = "RAY_OVERRIDE_LABELS"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``grix up`` is asked for: one region, the coordinator alone, or all of the federation."""

    config: Sequence[Path] | None = None
    region: str | None = None
    control: bool = False
    model: str | None = None
    open_access: bool = False
    wait_s: float = 300.0
    #: What the region's node is told of itself.
    node_labels: str | None = field(default_factory=lambda: os.environ.get(LABELS_VARIABLE))


def memory_needed(config: Config, region: Region, model: str | None) -> memory.Budget:
    """What the region needs against what there is.

    Raises:
        Failed: with exit status 2, for a model that is not there.
    """
    from serve_app.edge.model_files import ModelError, as_model_path, model_bytes
    from serve_app.edge.serve_config import agents_of

    available = memory.available_bytes()
    needs = []
    try:
        for name, agent in agents_of(config, region).items():
            spec = agent.spec
            if spec.storage is None or spec.min_replicas == 0:
                continue
            path = as_model_path(model) if model is not None else spec.storage.model_path
            cache = spec.engine.kv_cache_memory_bytes if spec.gpu is None else None
            if cache is None and spec.gpu is None:
                cache = round(spec.engine.gpu_memory_utilization * available)
            needs.append(memory.EngineNeed(name, spec.min_replicas, model_bytes(path), cache))
    except ModelError as error:
        raise Failed(str(error), BAD_USAGE) from None
    detectors = region.detectors if region.detector_placement == "deployment" else 0
    helpers = memory.REGION_HELPERS if config.federation.spec.coordinator is not None else 0
    return memory.budget(needs, routers=region.routers, detectors=detectors, helpers=helpers, available_bytes=available)


def check_exposure(region: Region) -> None:
    """Refuses a profile that would open ports to other machines without a word.

    Raises:
        Failed: with exit status 2.
    """
    from serve_app.edge import ray_cluster

    http = region.http
    if http.profile == "fast" and not http.expose_haproxy_ports and not ray_cluster.only_loopback():
        raise Failed(
            f"{region.name}: http.profile fast opens HAProxy's statistics and the Routers on every interface of this "
            "machine, and it has more than loopback; start it in a network namespace of its own, write "
            "http.exposeHaproxyPorts: true, or choose profile: standard",
            BAD_USAGE,
        )


def check_nodes(config: Config, region: Region, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
    """Refuses a region that is to start what none of its nodes (``ray.nodes()``) can carry.

    Serve would wait for such a node without end; of GPU memory it knows nothing, and the engine would die of it.
    What may be carried, for all that is known of the GPUs, and what starts nothing yet is told and not refused.

    Raises:
        Failed: with exit status 2, naming agent, requirement and nearest node.
    """
    from serve_app.core.nodes import unmet
    from serve_app.edge.fleet_documents import engine_needs
    from serve_app.edge.ray_nodes import VRAM_LABEL, at_most, nodes_of

    nodes = nodes_of(rows, region.cloud, region.name)
    refused: list[str] = []
    for needs in (replace(n, regions=(region.name,)) for n in engine_needs(config) if region.name in n.regions):
        sure = unmet(needs, map(at_most, nodes))
        if not sure and unmet(needs, nodes):
            label = f'{LABELS_VARIABLE}=\'{{"{VRAM_LABEL}": "80Gi"}}\''
            for fault in unmet(needs, [n for n in nodes if not unmet(needs, [at_most(n)])]):
                progress.tell(f"{region.name}: {fault}, for all that is known; to tell its label: {label} grix up")
        elif config.agents[needs.agent].spec.min_replicas == 0:
            for fault in sure:
                progress.tell(f"{region.name}: {fault}; it has minReplicas: 0, so none starts now")
        else:
            refused += sure
    if refused:
        raise Failed("\n".join(refused), BAD_USAGE)


@contextmanager
def _port_held(region: Region) -> Iterator[bool]:
    """Whether the region's own HTTP port is free; it is kept from other regions until this one listens."""
    from serve_app.edge import ports_free

    if region.http.profile == "fast":
        # HAProxy shares its port with nobody, and says so.
        yield ports_free.is_free(region.http.port)
        return
    holder = ports_free.hold(region.http.port)
    try:
        yield holder is not None
    finally:
        if holder is not None:
            holder.close()


def start_region(name: str, wanted: Wanted, home: Home, progress: Progress) -> clusters.Starting:
    """Brings the region up; where it is one of several, its lines lead to it from then on.

    Raises:
        Failed: with what it had started still in the state.
    """
    config = documents.load(wanted.config, [own_tenant(home)])
    region = config.federation.region(name)
    assert region is not None
    with _port_held(region) as port_is_free:
        yield from _start(config, region, port_is_free, wanted, home, progress)


def _start(
    config: Config, region: Region, port_is_free: bool, wanted: Wanted, home: Home, progress: Progress
) -> clusters.Starting:
    from serve_app.edge import ray_cluster

    name, http = region.name, region.http
    total_s = max(agent.spec.timeouts.total_s for agent in config.agents.values())
    cluster, record = clusters.prepare(home, name, total_s if http.profile == "fast" else None)
    port = http.port if port_is_free else cluster.spare_port
    host = "127.0.0.1" if http.host in ("0.0.0.0", "::", "localhost") else http.host
    record |= {
        "url": f"{'https' if http.tls else 'http'}://{host}:{port}",
        "tls_certificate": http.tls.cert_file if http.tls else None,
        "key_file": str(home.key_file.resolve()),
        "open_access": wanted.open_access,
        "config": None if wanted.config is None else [str(Path(p).resolve()) for p in wanted.config],
        "model": wanted.model,
        "node_labels": wanted.node_labels,
    }
    # Written before there is a process: a command that dies right after its child started leaves what finds it.
    home.remember(record)
    lines = home.read()["links"]
    if lines is not None:
        record["listen"] = f"127.0.0.1:{cluster.federation_port}"
        config = links.seen_by(config, lines, name, record["listen"])
        config = certificates.in_use(config, home)
    serve_config = documents.render(config, name, port, wanted.model, wanted.open_access)
    engines = [app["args"] for app in serve_config["applications"] if "model_path" in app["args"]]
    record["models"] = sorted({engine["model_path"] for engine in engines})
    if region.redis is None:
        region_redis.begin(record, home.region(name), cluster.redis_port, tasks=region.tasks is not None)
        home.remember(record)
        region_redis.use(record, serve_config)
    region_redis.use_task_secret(home.region(name), serve_config)
    if lines is not None:
        links.lead(lines, name, record["listen"])
    process = clusters.start(cluster, record, home, _with_labels(os.environ, wanted.node_labels))
    yield from clusters.deploy(
        record,
        serve_config,
        process,
        home,
        wanted.wait_s,
        progress,
        lambda: _health(record),
        lambda rows: check_nodes(config, region, rows, progress),
    )
    record["shared_memory"] = ray_cluster.shared_files(regions.running(record))
    home.remember(record)


def _with_labels(environment: Mapping[str, str], labels: str | None) -> dict[str, str]:
    others = {name: value for name, value in environment.items() if name != LABELS_VARIABLE}
    return others if labels is None else {**others, LABELS_VARIABLE: labels}


def _health(record: dict[str, Any]) -> tuple[bool, str]:
    well, said = regions.deep_health(record)
    return well, f"deep health: {'ok' if well else regions.short_health(said)}"


def as_before(record: dict[str, Any], wait_s: float = 300.0) -> Wanted:
    """What a region was started with."""
    config = record.get("config")
    paths = None if config is None else [Path(p) for p in config]
    return Wanted(
        paths,
        record["name"],
        model=record.get("model"),
        open_access=bool(record.get("open_access")),
        wait_s=wait_s,
        node_labels=record.get("node_labels"),
    )
