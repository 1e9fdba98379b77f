"""What is measured: vLLM's own server, and Grix in front of an engine with the very same settings.

The settings are read out of the Serve config that Grix itself deploys, so the two cannot drift apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.processes import BenchmarkError, Child, free_port, start
from cluster_configs.load import load_paths, local_paths
from serve_app.core.tenants import hash_key
from serve_app.edge import ray_cluster
from serve_app.edge.agent_app import RESOURCES_VARIABLE
from serve_app.edge.engine_model import engine_model
from serve_app.edge.serve_config import render

#: The name every target is asked for: in Grix it runs the rules, elsewhere it is just the model's name.
MODEL_NAME: Final = "auto"
READY_LIMIT_S: Final = 240.0
POLL_S: Final = 0.25
#: The key of the tenant that asks Grix, of this run alone.
KEY: Final = f"bench-{secrets.token_urlsafe(32)}"
#: A tenant of whom every limit is counted, each far above what a run sends: the local one of ``grix up`` has none.
TENANT: Final[Mapping[str, Any]] = {
    "apiVersion": "grix.io/v1",
    "kind": "Tenant",
    "metadata": {"name": "bench"},
    "spec": {
        "keys": [{"id": "k1", "sha256": hash_key(KEY)}],
        "residency": ["any"],
        "limits": {"requestsPerMinute": 10_000_000, "tokensPerMinute": 1_000_000_000, "concurrent": 100_000},
    },
}


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chat requests. ``pids`` are all of its server processes, the engine's included."""

    name: str
    url: str
    pids: Callable[[], list[int]]
    stop: Callable[[], None]
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Messages that the client puts first, so that every engine gets the same prompt: Grix adds its template itself.
    messages: Sequence[Mapping[str, str]] = ()

    @property
    def chat_url(self) -> str:
        return f"{self.url}/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Engine:
    """What Grix starts an engine with: model folder, vLLM's options by vLLM's names, environment."""

    model_path: str
    options: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """What of a region's shipped configuration a benchmark changes; ``None`` leaves it."""

    slots: int | None = None
    profile: str | None = None
    detector: str | None = None


GRIX: Final = "grix"
_PROFILES: Final = ("standard", "fast")
_DETECTORS: Final = ("router", "deployment")


def is_grix(name: str) -> bool:
    """Whether a target is Grix: ``grix``, or with words of its own setting after it, ``grix-standard-deployment``."""
    return name.partition("-")[0] == GRIX


def setting_of(name: str, base: Setting) -> Setting:
    """The setting of a Grix by its name: what it does not say is as for all.

    Raises:
        BenchmarkError: for a word that is none.
    """
    for word in name.split("-")[1:]:
        if word in _PROFILES:
            base = replace(base, profile=word)
        elif word in _DETECTORS:
            base = replace(base, detector=word)
        else:
            raise BenchmarkError(f"target {name}: allowed after grix- are {', '.join(_PROFILES + _DETECTORS)}")
    return base


def config_paths(folder: Path, setting: Setting) -> list[Path]:
    """The shipped set for one machine, in a copy: its first region alone, with the setting and the benchmark's tenant.

    A second region would answer with an engine that direct and the peers do not have. Nobody is told to come later,
    since direct and the peers let everybody wait.
    """
    local, *others = local_paths()
    documents = list(yaml.safe_load_all(local.read_text()))
    for document in documents:
        spec = document["spec"]
        if "engine" in spec:
            spec["timeouts"] = {"queue": "120s", "firstByte": "180s"}
            if setting.slots is not None:
                spec["engine"]["maxNumSeqs"] = setting.slots
        spec.pop("languageAffinity", None)
        if document["kind"] == "Federation":
            del spec["regions"][1:], spec["regions"][0]["gateway"], spec["coordinator"], spec["health"]
        for region in spec.get("regions", []):
            if setting.profile is not None:
                region["http"]["profile"] = setting.profile
            if setting.detector is not None:
                region["detectorPlacement"] = setting.detector
    copy = folder / "local.yaml"
    copy.write_text(yaml.safe_dump_all([*documents, dict(TENANT)], sort_keys=False))
    return [copy, *others]


def engine_of(paths: Sequence[Path], model: str) -> Engine:
    """The engine of the region's first agent that owns one, as Grix would start it."""
    config = load_paths(paths, os.environ)
    region = config.federation.spec.regions[0].name
    rendered = render(config, region, http_host="127.0.0.1", http_port=1, model=model)
    app = next(a for a in rendered["applications"] if a["import_path"] == "deployments.app:build_agent")
    variables = dict(app["deployments"][0]["ray_actor_options"]["runtime_env"]["env_vars"])
    resources = json.loads(variables.pop(RESOURCES_VARIABLE))
    return Engine(engine_model(app["args"])[0], {**app["args"]["engine"], **resources}, variables)


def template_messages(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The system message that Grix puts in front of an English question."""
    templates = load_paths(paths, os.environ).templates
    return [{"role": "system", "content": templates["en"].spec.system}]


def flags(options: Mapping[str, Any]) -> list[str]:
    """vLLM's options as its command line has them."""
    out = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        out += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}={value}"]
    return out


def direct_command(engine: Engine, port: int) -> list[str]:
    """vLLM's own server, with the scheduling policy and seed of Grix's adapter, and without a log line a request."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port), "--model", engine.model_path),
        *("--served-model-name", MODEL_NAME, "--scheduling-policy", "priority", "--seed", "0"),
        "--disable-uvicorn-access-log",
        *flags(engine.options),
    ]


def start_direct(engine: Engine, folder: Path) -> tuple[Child, str]:
    """Starts vLLM's own server; the child and its address."""
    port = free_port()
    return start("direct", direct_command(engine, port), folder, engine.environment), f"http://127.0.0.1:{port}"


def answers(target: Target, limit_s: float = 10.0) -> str:
    """Empty when the target answers a chat request, else what is wrong."""
    messages = [*target.messages, {"role": "user", "content": "Hello, where is my parcel?"}]
    body = json.dumps({"model": MODEL_NAME, "max_tokens": 2, "messages": messages}).encode()
    headers = {"content-type": "application/json", **target.headers}
    request = urllib.request.Request(target.chat_url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    except urllib.error.HTTPError as error:
        return f"status {error.code}: {error.read()[:300].decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return str(error)


def wait_ready(target: Target, child: Child, limit_s: float = READY_LIMIT_S) -> None:
    """Waits until the target answers a chat request.

    Raises:
        BenchmarkError: when it ends, or does not in time.
    """
    until_s = time.monotonic() + limit_s
    while wrong := answers(target):
        child.check()
        if time.monotonic() > until_s:
            raise BenchmarkError(f"{child.name}: not ready after {limit_s:.0f} s: {wrong}; it said:\n{child.tail()}")
        time.sleep(POLL_S)


def start_grix(paths: Sequence[Path], model: str, folder: Path, more: Sequence[str] = ()) -> Child:
    """Starts ``grix up`` in a folder of its own, with ``more`` arguments; it ends when the region is up."""
    command = [sys.executable, "-m", "serve_app.cli", "up", "--json", "--model", model]
    return start("grix", [*command, *more, "--config", *map(str, paths)], folder)


def region_of(folder: Path) -> dict[str, Any]:
    """The record of the region that ``grix up`` keeps in ``folder``.

    Raises:
        BenchmarkError: when there is none.
    """
    try:
        return dict(json.loads((folder / ".grix/state.json").read_text())["regions"][0])
    except (OSError, ValueError, LookupError) as error:
        raise BenchmarkError(f"{folder}: has no region: {error}") from None


def running_of(record: Mapping[str, Any]) -> ray_cluster.Running:
    """The record as ``ray_cluster`` wants it."""
    pids = record["pids"]
    return ray_cluster.Running(pids[0] if pids else None, record["started_unix_s"], Path(record["temp_dir"]))


def grix_target(name: str, child: Child, folder: Path) -> Target:
    """Waits for ``grix up``; the region as a target.

    Raises:
        BenchmarkError: with what ``grix up`` said, when it failed.
    """
    try:
        status = child.process.wait(READY_LIMIT_S + 60)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"grix up does not end; it said:\n{child.tail()}") from None
    if status != 0:
        raise BenchmarkError(f"grix up ended with status {status}; it said:\n{child.tail()}")
    record = region_of(folder)
    return Target(
        name,
        record["url"],
        lambda: [p.pid for p in ray_cluster.processes(running_of(record))],
        lambda: stop_grix(folder),
        {"authorization": f"Bearer {KEY}"},
    )


def stop_grix(folder: Path) -> None:
    """Takes down what ``grix up`` started in ``folder``, also when it was interrupted halfway."""
    if (folder / ".grix").is_dir():
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-m", "serve_app.cli", "down"], cwd=folder, capture_output=True, timeout=120
            )
