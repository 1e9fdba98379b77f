"""``grix up`` and ``grix down``: memory, certificates, lines, coordinator, regions, in this order."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from serve_app.cli import certificates, clusters, control, documents, links, memory, regions, start_region
from serve_app.cli.say import BAD_USAGE, Failed, Progress, note
from serve_app.cli.start_region import Wanted
from serve_app.cli.state import CONTROL, Home, private_folder

if TYPE_CHECKING:
    from cluster_configs.load import Config


def up(wanted: Wanted, home: Home, progress: Progress) -> tuple[dict[str, Any], bool]:
    """Brings up what is wanted and not there yet; the state, and whether all of it was up before.

    Raises:
        Failed: with nothing left behind that this command has started, but the logs of Ray's head processes.
    """
    documents.check_model(wanted.model)
    config = documents.load(wanted.config)
    names = _names(config, wanted)
    if wanted.open_access:
        note("WARNING: --open-access turns API keys OFF: whoever reaches the port may use every agent")
    private_folder(home.root)
    with alone(home):
        _clean(home, progress)
        have = {r["name"] for r in home.records()}
        missing = [name for name in names if name not in have]
        _check(config, [n for n in missing if n != CONTROL], CONTROL in missing, wanted)
        try:
            if config.federation.spec.coordinator is not None:
                _prepare(config, home, progress)
            if CONTROL in missing:
                clusters.together([control.start_control(wanted, home, progress)])
            ahead = [n for n in missing if n != CONTROL]
            clusters.together([start_region.start_region(n, wanted, home, progress) for n in ahead])
            if wanted.region is None and not wanted.control and CONTROL in names:
                control.wait_until_ready([n for n in names if n != CONTROL], home, wanted.wait_s, progress)
        except BaseException:
            take_down(missing, home, progress, keep_log=True)
            raise
        return home.read(), not missing


def down(home: Home, progress: Progress) -> bool:
    """Ends everything of this folder; whether there was anything.

    Raises:
        Failed: when a process survives even SIGKILL; what it belongs to stays in the state.
    """
    state = home.read()
    take_down([r["name"] for r in home.records()], home, progress)
    return state != home.read()


def take_down(names: Sequence[str], home: Home, progress: Progress, *, keep_log: bool = False) -> None:
    """Ends these clusters, and with the last one the lines between them. One that will not end stops no other's end."""
    faults = []
    for record in home.records():
        if record["name"] in names:
            try:
                regions.end(record, home, progress, keep_log=keep_log)
            except Failed as error:
                faults.append(str(error))
    if not faults and not home.records():
        with regions.uninterrupted():
            links.end(home)
    if faults:
        raise Failed("\n".join(faults))


def _names(config: Config, wanted: Wanted) -> list[str]:
    """What is to be up, in the order in which it starts."""
    links.check_names(config)
    spec = config.federation.spec
    known = [r.name for r in spec.regions]
    if wanted.control:
        if wanted.region is not None or spec.coordinator is None:
            reason = "--region is given too" if wanted.region is not None else "the federation has no coordinator"
            allowed = "--control alone, with a coordinator in the Federation"
            raise Failed(f"--control: {reason}; allowed: {allowed}", BAD_USAGE)
        return [CONTROL]
    if wanted.region is not None:
        if wanted.region not in known:
            raise Failed(f"--region {wanted.region}: is not in the federation; allowed: {', '.join(known)}", BAD_USAGE)
        return [wanted.region]
    if spec.coordinator is None:
        return known
    if not links.on_this_machine(config):
        raise Failed(
            "the Federation's addresses are of several machines; allowed here: --region "
            f"{' or --region '.join(known)}, or --control for the coordinator",
            BAD_USAGE,
        )
    return [CONTROL, *known]


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """One command that starts something a folder; the lock ends with this process, however it ends."""
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


def _clean(home: Home, progress: Progress) -> None:
    """Removes what clusters that are gone have left."""
    for record in home.records():
        if not regions.is_alive(record):
            note(f"{record['name']}: its cluster is gone, cleaning up what it left")
            regions.end(record, home, progress)
    if not home.records():
        links.end(home)


def _check(config: Config, names: Sequence[str], with_control: bool, wanted: Wanted) -> None:
    """Memory for all of it, before anything is started.

    Raises:
        Failed: when it does not fit.
    """
    needs: list[tuple[str, memory.Budget]] = [(CONTROL, control.memory_needed())] if with_control else []
    for name in names:
        region = config.federation.region(name)
        assert region is not None
        needs.append((name, start_region.memory_needed(config, region, wanted.model)))
    for name, need in needs:
        note(f"{name}: {need.text()}")
    for name in names:
        region = config.federation.region(name)
        assert region is not None
        start_region.check_exposure(region)
    total = sum(need.needed_bytes for _, need in needs)
    available = memory.available_bytes()
    if needs and total > available:
        raise Failed(
            f"{', '.join(name for name, _ in needs)}: {memory.gib(total)} GiB are needed, {memory.gib(available)} GiB "
            "are available; free memory, lower engine.kvCacheMemory or minReplicas, start one --region, or choose a "
            "smaller --model"
        )


def _prepare(config: Config, home: Home, progress: Progress) -> None:
    """Certificates, and the lines between the parts where all of them are on this machine."""
    if not links.on_this_machine(config):
        certificates.check_given(config)
        return
    certificates.ensure(config, home)
    record = home.read()["links"]
    if record is not None and not links.covers(config, record):
        raise Failed("what is up in this folder is of another federation; run grix down first", BAD_USAGE)
    if record is None or not regions.is_alive(record):
        progress.tell("the relay between the regions is starting")
        links.begin(config, home)
