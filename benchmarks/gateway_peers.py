"""Other gateways, in front of the same engine: which are installed in ``.venv-peers``, and how each is started."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway_targets import MODEL_NAME, Target
from benchmarks.processes import BenchmarkError, Child, free_port, start

BIN: Final = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin"
READY_LIMIT_S: Final = 90.0


def _vllm_router(engine_url: str, port: int, folder: Path) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine_url, "--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
    ]


def _smg(engine_url: str, port: int, folder: Path) -> list[str]:
    return ["launch", *_vllm_router(engine_url, port, folder)]


def _litellm(engine_url: str, port: int, folder: Path) -> list[str]:
    model = {"model": f"openai/{MODEL_NAME}", "api_base": f"{engine_url}/v1", "api_key": "none"}
    config = folder / "litellm.json"
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL_NAME, "litellm_params": model}]}))
    return ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]


def envoy_config(engine_port: int, port: int) -> dict[str, Any]:
    """A plain reverse proxy: one route, one cluster, no time limit on a stream, no admin port."""

    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    kinds = "type.googleapis.com/envoy.extensions.filters"
    router = {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kinds}.http.router.v3.Router"}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "entry",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [router],
    }
    listener = {
        "name": "entry",
        "address": address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    endpoint = {"endpoint": {"address": address(engine_port)}}
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _envoy(engine_url: str, port: int, folder: Path) -> list[str]:
    config = folder / "envoy.json"
    config.write_text(json.dumps(envoy_config(int(engine_url.rpartition(":")[2]), port)))
    return ["-c", str(config), "--use-dynamic-base-id", "--log-level", "warning"]


#: Program and command line of each peer.
PEERS: Final[Mapping[str, Callable[[str, int, Path], list[str]]]] = {
    "vllm-router": _vllm_router,
    "smg": _smg,
    "litellm": _litellm,
    "envoy": _envoy,
}
#: Nobody is called home, and no price list is fetched.
ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "NO_DOCS": "True",
}
#: Where a peer that wants an API key takes it from.
KEY_VARIABLES: Final = {"litellm": "LITELLM_MASTER_KEY"}


def found() -> list[str]:
    """Peers that ``make peers`` installed."""
    return [name for name in PEERS if (BIN / name).is_file()]


def start_peer(name: str, engine_url: str, folder: Path, messages: Sequence[Mapping[str, str]]) -> tuple[Target, Child]:
    """Starts a peer in front of an engine.

    Raises:
        BenchmarkError: when it is unknown or not installed.
    """
    if name not in PEERS:
        raise BenchmarkError(f"--targets {name}: is unknown; allowed: direct, grix, {', '.join(PEERS)}")
    if not (BIN / name).is_file():
        raise BenchmarkError(f"--targets {name}: is not installed; run: make peers")
    port = free_port()
    key = f"sk-{secrets.token_hex(16)}"
    command = [str(BIN / name), *PEERS[name](engine_url, port, folder)]
    variable = KEY_VARIABLES.get(name)
    child = start(name, command, folder, {**ENVIRONMENT, variable: key} if variable else ENVIRONMENT)
    headers = {"authorization": f"Bearer {key}"} if variable else {}
    return Target(name, f"http://127.0.0.1:{port}", child.pids, child.stop, headers, messages), child
