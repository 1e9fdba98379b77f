"""What an engine loads: a folder on this host, fetched from its store first where the model lies in one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from serve_app.core.names import engine_digest, short
from serve_app.edge.model_cache import Lock, ModelCache
from serve_app.edge.model_fetch import fetch
from serve_app.edge.model_files import local_model
from serve_app.edge.model_store import open_store, stored
from serve_app.edge.store_types import Limits, StoreError

log = logging.getLogger("ray.serve")

#: A log that nobody watches hears of progress less often than a terminal.
_LIMITS: Final = Limits(tell_s=10.0)


def engine_model(args: Mapping[str, Any], cache: ModelCache | None = None) -> tuple[str, Lock | None]:
    """What vLLM gets as ``model``, and what keeps it in the host's cache: hold it as long as the engine lives.

    Raises:
        ModelError: when the model is not there, cannot be fetched, or is not the one in the engine's digest.
    """
    address = stored(args["model_path"])
    if address is None:
        return local_model(args["model_path"]), None
    fetched = fetch(
        address,
        lambda: open_store(address, _LIMITS),
        cache or ModelCache(),
        _LIMITS,
        lambda said: log.info("model %s: %s", address.uri, said),
    )
    digest = engine_digest(fetched.manifest.weights_digest, args["engine"])
    if digest != args["engine_digest"]:
        fetched.lease.free()
        raise StoreError(
            f"{address.uri}: this host has it as engine {short(digest)}, the config asks for "
            f"{short(args['engine_digest'])}: the version was changed in its store; see grix model verify"
        )
    log.info("model %s: %d bytes read from the store", address.uri, fetched.read_bytes)
    return str(fetched.folder), fetched.lease
