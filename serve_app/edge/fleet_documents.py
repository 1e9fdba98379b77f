"""From documents to what they ask of the fleet: regions, needs of engines, and the releases that regions will serve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cluster_configs import schema
from cluster_configs.bundle import Config, engine_owner, to_documents
from cluster_configs.load import load_paths
from cluster_configs.table import table_of
from serve_app.core.fleet_events import KnownRegion, Wanted
from serve_app.core.names import digest_of, short
from serve_app.core.nodes import Needs
from serve_app.edge.model_files import ModelError, as_model_path
from serve_app.edge.serve_config import agents_of, engine_args, router_config

#: Models whose files may have to be made first; that is not the coordinator's work.
_MADE: Final = frozenset({"smollm2"})


def config_of(documents: Sequence[Mapping[str, Any]]) -> Config:
    """A whole set of documents as plain JSON.

    Raises:
        ConfigError: with every fault; the line of a fault is the number of its document.
    """
    return load_paths([], {}, documents)


def parsed(text: str) -> Config:
    """The set that facts keep as text.

    Raises:
        ConfigError: faults in documents.
        ValueError: no list of documents at all.
    """
    try:
        documents = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("documents: is no JSON; allowed: a list of documents") from None
    if not isinstance(documents, list):
        raise ValueError("documents: is no list; allowed: a list of documents")
    return config_of(documents)


def wanted_of(config: Config, model: str | None = None) -> Wanted:
    """What applied documents ask for. Reads the files of models that are on this machine: not for the loop.

    ``model`` is what replaces every policy's own, as in ``grix up --model``.
    """
    documents = to_documents(config)
    return Wanted(
        **_health(config.federation),
        regions=_regions(config.federation),
        needs=tuple(engine_needs(config)),
        revision=revision_of(config),
        documents=json.dumps(documents, ensure_ascii=False, separators=(",", ":")),
        expected=expected(config, model),
    )


def revision_of(config: Config) -> str:
    """The name of a set of documents."""
    return short(digest_of({"documents": to_documents(config)}))


def begun_with(config: Config) -> Wanted:
    """What the documents of a coordinator's own start ask for, before anybody applied any."""
    return Wanted(
        **_health(config.federation),
        regions=_regions(config.federation),
        needs=tuple(engine_needs(config)),
    )


def _health(federation: schema.Federation) -> dict[str, Any]:
    health = federation.spec.health
    return {
        "heartbeat_s": health.heartbeat_s,
        "missed_heartbeats": health.missed_heartbeats,
        "peer_silence_s": health.peer_silence_s,
    }


def _regions(federation: schema.Federation) -> tuple[KnownRegion, ...]:
    return tuple(
        KnownRegion(r.name, r.accepts_spill and (r.gateway is not None or len(federation.spec.regions) == 1))
        for r in federation.spec.regions
    )


def engine_needs(config: Config) -> list[Needs]:
    """Of every engine; an agent that borrows one needs nothing more."""
    out = []
    for name, policy in sorted(config.agents.items()):
        spec = policy.spec
        if spec.engine_of is not None:
            continue
        regions = tuple(r.name for r in config.federation.spec.regions if name in agents_of(config, r))
        engine, gpu = spec.engine, spec.gpu
        if gpu is None:
            out.append(Needs(name, regions, float(engine.cpu_threads), engine.kv_cache_memory_bytes or 0))
        else:
            # What a share of a GPU must have, the GPU must have more of.
            vram_bytes = math.ceil(gpu.vram_required_bytes / gpu.fraction)
            ranks = engine.tensor_parallel_size
            out.append(Needs(name, regions, gpus=ranks, vram_per_gpu_bytes=vram_bytes, mig_slice=gpu.mig_slice))
    return out


def expected(config: Config, model: str | None = None) -> dict[tuple[str, str], str]:
    """The release of each (region, agent), as regions will compute it.

    Left out are agents whose model this machine has not: of these no drift is claimed.
    """
    engines: dict[str, str] = {}
    for name, policy in config.agents.items():
        if policy.spec.engine_of is not None:
            continue
        assert policy.spec.storage is not None
        try:
            path = policy.spec.storage.model_path if model is None else as_model_path(model)
            if path in _MADE:
                continue
            engines[name] = engine_args(name, policy.spec, path)["engine_digest"]
        except (ModelError, OSError):
            continue
    owners = {name: engine_owner(config.agents, name).metadata.name for name in config.agents}
    known = {name: engines[owner] for name, owner in owners.items() if owner in engines}
    regions = config.federation.spec.regions
    # A release does not depend on the region.
    table = table_of(router_config(config, regions[0], known, False))
    return {
        (region.name, name): table.agents[name].release
        for region in regions
        for name in agents_of(config, region)
        if name in known
    }
