"""The control cluster of a federation on this machine: GlobalCoordinator, and nothing that a request needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import certificates, clusters, documents, links, memory, regions
from serve_app.cli.say import BAD_USAGE, Failed, Progress
from serve_app.cli.start_region import Wanted
from serve_app.cli.state import CONTROL, Home, own_tenant, private_folder, tenant_document

if TYPE_CHECKING:
    from cluster_configs.load import Config
    from serve_app.edge.admin_client import Admin

POLL_S: Final = 0.25
#: Phases of a region that takes part.
THERE: Final = frozenset({"ready", "slow", "drained"})


def memory_needed() -> memory.Budget:
    """A cluster with one thin deployment, and no HTTP."""
    return memory.budget([], routers=0, detectors=0, available_bytes=memory.available_bytes())


def start_control(wanted: Wanted, home: Home, progress: Progress) -> clusters.Starting:
    """Brings the coordinator up.

    Raises:
        Failed: with what it had started still in the state.
    """
    from serve_app.edge import ray_cluster, serve_config
    from serve_app.edge.model_files import ModelError

    config = documents.load(wanted.config, [own_tenant(home)])
    coordinator = config.federation.spec.coordinator
    assert coordinator is not None
    cluster, record = clusters.prepare(home, CONTROL)
    record |= {"address": str(coordinator.address), "metrics": f"127.0.0.1:{cluster.spare_port}"}
    record |= {"config": None if wanted.config is None else [str(Path(p).resolve()) for p in wanted.config]}
    record |= {"model": wanted.model, "pki": str(certificates.folder(config, home))}
    lines = home.read()["links"]
    if lines is not None:
        record |= {
            "listen": f"127.0.0.1:{cluster.federation_port}",
            "address": links.address_of(lines, links.COORDINATOR),
        }
        config = links.seen_by(config, lines, links.COORDINATOR, record["listen"])
    home.remember(record)
    config = _with_store(certificates.in_use(config, home), home)
    if lines is not None:
        links.lead(lines, links.COORDINATOR, record["listen"])
    try:
        rendered = serve_config.render_control(config, metrics=record["metrics"], model=wanted.model)
    except (LookupError, ModelError) as error:
        raise Failed(str(error.args[0] if error.args else error)) from None
    process = clusters.start(cluster, record, home)
    yield from clusters.deploy(record, rendered, process, home, wanted.wait_s, progress, lambda: _answers(record))
    record["shared_memory"] = ray_cluster.shared_files(regions.running(record))
    home.remember(record)


def _with_store(config: Config, home: Home) -> Config:
    """What the coordinator must not forget lies in this folder, unless the Federation names a place."""
    from cluster_configs.kind_federation import Store

    spec = config.federation.spec
    assert spec.coordinator is not None
    if spec.coordinator.store is not None:
        return config
    folder = private_folder(home.store).resolve()
    coordinator = spec.coordinator.model_copy(update={"store": Store(url=f"file://{folder}")})
    spec = spec.model_copy(update={"coordinator": coordinator})
    return replace(config, federation=config.federation.model_copy(update={"spec": spec}))


def admin(home: Home, config: Sequence[Path] | None = None) -> Admin | None:
    """The coordinator's Admin interface: of what is up in this folder, or of the Federation in ``config``.

    ``None`` where neither has a coordinator.

    Raises:
        Failed: for documents with faults.
    """
    if config is None:
        record = home.read()["coordinator"]
        return None if record is None else _admin(record["address"], Path(record["pki"]))
    loaded = documents.load(config, [tenant_document("nobody has this key")])
    coordinator = loaded.federation.spec.coordinator
    return None if coordinator is None else _admin(str(coordinator.address), certificates.folder(loaded, home))


def _admin(address: str, pki_folder: Path) -> Admin:
    from serve_app.edge.admin_client import Admin
    from serve_app.edge.pki import OPERATOR

    return Admin(address, pki_folder / "operator" / OPERATOR)


def ask(asked: Admin | None, verb: str, **fields: Any) -> dict[str, Any]:
    """One verb of the coordinator.

    Raises:
        Failed: without a coordinator, without an answer, or with its refusal; a refusal has exit status 2.
    """
    from serve_app.edge.admin_client import AdminCallError, NotDone

    if asked is None:
        raise Failed("no coordinator belongs to what is up in this folder; start one with grix up, or name --config")
    try:
        return asked.do(verb, **fields)
    except NotDone as error:
        raise Failed("\n".join(error.faults) or error.error, BAD_USAGE) from None
    except AdminCallError as error:
        raise Failed(str(error)) from None


def _answers(record: dict[str, Any]) -> tuple[bool, str]:
    try:
        ask(_admin(record["address"], Path(record["pki"])), "status")
    except Failed as error:
        return False, str(error)
    return True, "the coordinator answers"


def wait_until_ready(names: Sequence[str], home: Home, wait_s: float, progress: Progress) -> None:
    """Waits until the coordinator's plan lists these regions as ready.

    Raises:
        Failed: after ``wait_s``, telling what each region lacks.
    """
    asked = admin(home)
    until_s = time.monotonic() + wait_s
    while True:
        missing = _missing(asked, names)
        if not missing:
            return
        progress.tell(f"plan: {missing}")
        if time.monotonic() > until_s:
            raise Failed(f"the coordinator's plan is not complete after {wait_s:.0f} s (--wait): {missing}")
        time.sleep(POLL_S)


def _missing(asked: Admin | None, names: Sequence[str]) -> str:
    try:
        told = {r["name"]: r for r in ask(asked, "status")["regions"]}
    except Failed as error:
        return str(error)
    lacking = [n for n in names if told.get(n, {}).get("phase") not in THERE]
    return ", ".join(f"{n} {_why(told.get(n))}" for n in lacking)


def _why(region: dict[str, Any] | None) -> str:
    if region is None:
        return "is not in the plan"
    return f"is {region['phase']}" + (f" ({region['why']})" if region.get("why") else "")
