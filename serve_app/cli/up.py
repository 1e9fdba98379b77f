"""``grix up``: memory, cluster, applications, health, in this order, one region after the other."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import documents, memory, region_redis, regions
from serve_app.cli.say import BAD_USAGE, Failed, Progress, note
from serve_app.cli.state import Home, own_tenant, private_folder, write_private

if TYPE_CHECKING:
    from cluster_configs.load import Config
    from cluster_configs.schema import Region
    from serve_app.edge.serve_rest import AppStatus, ServeRest

LEAST_CPUS: Final = 4
POLL_S: Final = 0.5
CLUSTER_LIMIT_S: Final = 90.0
TAIL_CHARS: Final = 3000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``grix up`` is asked for. ``region`` is ``None`` for every region of the federation."""

    config: Sequence[Path] | None = None
    region: str | None = None
    model: str | None = None
    open_access: bool = False
    wait_s: float = 300.0


def up(wanted: Wanted, home: Home, progress: Progress) -> tuple[dict[str, Any], bool]:
    """Brings the regions up; the state, and whether they were up before.

    Raises:
        Failed: with nothing left behind but the log of Ray's head process.
    """
    documents.check_model(wanted.model)
    config = documents.load(wanted.config)
    names = _names(config, wanted.region)
    if wanted.open_access:
        note("WARNING: --open-access turns API keys OFF: whoever reaches the port may use every agent")
    private_folder(home.root)
    with _alone(home):
        for record in home.read()["regions"]:
            if not regions.is_alive(record):
                note(f"{record['name']}: its cluster is gone, cleaning up what it left")
                regions.end(record, home, progress)
        have = {r["name"] for r in home.read()["regions"]}
        missing = [name for name in names if name not in have]
        try:
            for name in missing:
                with _port_held(config, name) as free:
                    _bring_up(config, name, wanted, free, home, progress)
        except BaseException:
            for record in home.read()["regions"]:
                if record["name"] in missing:
                    regions.end(record, home, progress, keep_log=True)
            raise
        return home.read(), not missing


def _names(config: Config, region: str | None) -> list[str]:
    names = [r.name for r in config.federation.spec.regions]
    if region is None:
        return names
    if region not in names:
        raise Failed(f"--region {region}: is not in the federation; allowed: {', '.join(names)}", BAD_USAGE)
    return [region]


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """One ``grix up`` a folder; the lock ends with this process, however it ends."""
    private_folder(home.root)
    with (home.root / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failed(f"another grix up runs in {home.root.parent}; wait for it, or stop it") from None
        try:
            yield
        finally:
            home.tidy()


def check_memory(config: Config, region: Region, model: str | None) -> memory.Budget:
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
    return memory.budget(needs, routers=region.routers, detectors=detectors, available_bytes=available)


@contextmanager
def _port_held(config: Config, name: str) -> Iterator[bool]:
    """Whether the region's own HTTP port is free; it is kept from other regions until this one listens."""
    from serve_app.edge import ports_free

    region = config.federation.region(name)
    assert region is not None
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


def _bring_up(
    config: Config, name: str, wanted: Wanted, port_is_free: bool, home: Home, progress: Progress
) -> None:
    from serve_app.edge import ports_free, ray_cluster

    region = config.federation.region(name)
    assert region is not None
    need = check_memory(config, region, wanted.model)
    note(f"{name}: {need.text()}")
    if not need.fits:
        raise Failed(
            f"{name}: {memory.gib(need.needed_bytes)} GiB are needed, {memory.gib(need.available_bytes)} GiB are "
            "available; free memory, lower engine.kvCacheMemory or minReplicas, or choose a smaller --model"
        )
    http = region.http
    if http.profile == "fast" and not http.expose_haproxy_ports and not ray_cluster.only_loopback():
        raise Failed(
            f"{name}: http.profile fast opens HAProxy's statistics and the Routers on every interface of this machine, "
            "and it has more than loopback; start it in a network namespace of its own, write "
            "http.exposeHaproxyPorts: true, or choose profile: standard",
            BAD_USAGE,
        )
    folder = private_folder(home.region(name))
    token_file = folder / "ray_token"
    write_private(token_file, secrets.token_hex(32))
    config = documents.load(wanted.config, [own_tenant(home, name)])
    try:
        first_port = ports_free.free_block(ray_cluster.BLOCK, random.SystemRandom())
        temp_dir = ray_cluster.new_temp_dir()
    except OSError as error:
        raise Failed(str(error)) from None
    cpus = max(LEAST_CPUS, os.cpu_count() or 1)
    total_s = max(agent.spec.timeouts.total_s for agent in config.agents.values())
    haproxy_total_s = total_s if http.profile == "fast" else None
    cluster = ray_cluster.Cluster(first_port, token_file.resolve(), temp_dir, cpus, haproxy_total_s)
    port = region.http.port if port_is_free else cluster.spare_port
    host = "127.0.0.1" if region.http.host in ("0.0.0.0", "::", "localhost") else region.http.host
    record: dict[str, Any] = {
        "name": name,
        "url": f"{'https' if http.tls else 'http'}://{host}:{port}",
        "tls_certificate": http.tls.cert_file if http.tls else None,
        "key_file": str(home.key_file(name).resolve()),
        "dashboard": cluster.dashboard,
        "pids": [],
        "token_file": str(token_file.resolve()),
        "temp_dir": str(temp_dir),
        "gcs": cluster.gcs,
        "started_unix_s": time.time(),
        "open_access": wanted.open_access,
    }
    # Written before there is a process: a command that dies right after its child started leaves what finds it.
    _remember(home, record)
    serve_config = documents.render(config, name, port, wanted.model, wanted.open_access)
    engines = [app["args"] for app in serve_config["applications"] if "model_path" in app["args"]]
    record["models"] = sorted({engine["model_path"] for engine in engines})
    if region.redis is None:
        region_redis.begin(record, folder, cluster.redis_port)
        _remember(home, record)
        region_redis.use(record, serve_config)
    process = ray_cluster.start(cluster, folder / "ray.log", os.environ)
    record |= {"pids": [process.pid], "started_unix_s": ray_cluster.started_unix_s(process.pid)}
    _remember(home, record)
    _deploy(record, serve_config, process, wanted.wait_s, folder / "ray.log", progress)
    record["shared_memory"] = ray_cluster.shared_files(regions.running(record))
    _remember(home, record)


def _remember(home: Home, record: dict[str, Any]) -> None:
    state = home.read()
    others = [r for r in state["regions"] if r["name"] != record["name"]]
    home.write({**state, "regions": [*others, record]})


def _deploy(
    record: dict[str, Any],
    serve_config: dict[str, Any],
    process: subprocess.Popen[bytes],
    wait_s: float,
    log_file: Path,
    progress: Progress,
) -> None:
    """Puts the config once the dashboard answers, then waits until the region's engines make tokens."""
    from serve_app.edge.serve_rest import ServeRest, ServeRestError

    name, rest = record["name"], ServeRest(record["dashboard"], Path(record["token_file"]).read_text().strip())
    until_s = progress.elapsed_s() + wait_s

    def head_lives() -> None:
        if process.poll() is not None:
            tail = log_file.read_text(errors="replace")[-TAIL_CHARS:] if log_file.is_file() else ""
            raise Failed(f"{name}: Ray's head process ended with status {process.returncode}; it said:\n{tail}")

    def in_time(what: str) -> None:
        if progress.elapsed_s() > until_s:
            raise Failed(f"{name}: not ready after {wait_s:.0f} s (--wait): {what}")

    cluster_until_s = progress.elapsed_s() + min(wait_s, CLUSTER_LIMIT_S)
    while True:
        head_lives()
        progress.tell(f"{name}: Ray cluster {record['gcs']} is starting")
        try:
            rest.details()
            break
        except ServeRestError as error:
            if progress.elapsed_s() > cluster_until_s:
                raise Failed(f"{name}: Ray's dashboard does not answer: {error}") from None
        time.sleep(POLL_S)
    try:
        rest.put_config(serve_config)
    except ServeRestError as error:
        raise Failed(f"{name}: Serve refused the config: {error}") from None
    while True:
        head_lives()
        told, ready = _progress_of(rest, name, log_file.with_name("failure.log"))
        if ready:
            healthy, said = regions.deep_health(record)
            told += f"; deep health: {'ok' if healthy else regions.short_health(said)}"
            if healthy:
                progress.tell(f"{name}: {told}")
                return
        progress.tell(f"{name}: {told}")
        in_time(told)
        time.sleep(POLL_S)


def _last_words(told: str, failure_file: Path) -> str:
    """The line that says what went wrong; everything that was said goes to a file."""
    write_private(failure_file, told + "\n")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return f"{lines[-1][:500] if lines else 'no reason given'}\n  all that was said is in {failure_file}"


def _progress_of(rest: ServeRest, name: str, failure_file: Path) -> tuple[str, bool]:
    """Which application is in which state, and whether all of them run."""
    from serve_app.edge.serve_rest import BROKEN, ServeRestError

    try:
        apps: list[AppStatus] = rest.status()
    except ServeRestError as error:
        return f"no status ({error})"[:160], False
    for app in apps:
        if app.status in BROKEN:
            raise Failed(f"{name}: app {app.name} is {app.status}: {_last_words(app.told, failure_file)}")
    told = " · ".join(f"{a.name} {a.status}" for a in apps) or "Serve is starting"
    return told, bool(apps) and all(a.status == "RUNNING" for a in apps)
