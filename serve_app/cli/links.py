"""The lines between the parts of a federation on one machine: a relay, through which each part dials each other one.

A line is named by its ends, ``cloud-a>cloud-b`` or ``cloud-b>coordinator``, so that a drill can cut one and leave the
rest. The addresses that the Federation names are lines too (``*>cloud-a``): the relay listens there as long as anything
of the federation is up, so nobody else takes them between two starts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.cli.state import CONTROL, RESERVED, Home
from serve_app.cli.table import render

if TYPE_CHECKING:
    from cluster_configs.load import Config

COORDINATOR: Final = "coordinator"
ANYONE: Final = "*"
#: Port 1 is nobody's: what is not up yet resets whoever dials.
NOWHERE: Final = "127.0.0.1:1"
ANY_PORT: Final = "127.0.0.1:0"


def line(dialler: str, dialled: str) -> str:
    """The name of a line."""
    return f"{dialler}>{dialled}"


def addresses(config: Config) -> dict[str, str]:
    """What the Federation says of who is dialled where, the coordinator included."""
    spec = config.federation.spec
    named = {r.name: str(r.gateway) for r in spec.regions if r.gateway is not None}
    return named if spec.coordinator is None else {**named, COORDINATOR: str(spec.coordinator.address)}


def on_this_machine(config: Config) -> bool:
    """Whether every address of the federation is loopback: then its parts dial each other through the relay."""
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses(config).values()]
    return bool(hosts) and all(_loopback(host) for host in hosts)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_names(config: Config) -> None:
    """Refuses names of regions that would be taken for something else.

    Raises:
        Failed: with exit status 2.
    """
    for region in config.federation.spec.regions:
        if region.name in (*RESERVED, COORDINATOR):
            raise Failed(f"region {region.name}: grix up has this name for itself; choose another", BAD_USAGE)


def wanted(config: Config, known: dict[str, int]) -> dict[str, Any]:
    """The relay's links: where each listens, best first. ``known`` are the ports that regions have learnt before."""
    told = addresses(config)
    links: dict[str, Any] = {}

    def add(name: str, best: str | None) -> None:
        before = [f"127.0.0.1:{known[name]}"] if name in known else []
        links[name] = {"listen": [*before, *([best] if best else []), ANY_PORT], "target": NOWHERE}

    for dialled, address in told.items():
        add(line(ANYONE, dialled), f"127.0.0.1:{address.rpartition(':')[2]}")
        for region in config.federation.spec.regions:
            if region.name != dialled:
                add(line(region.name, dialled), None)
    return links


def begin(config: Config, home: Home) -> dict[str, Any]:
    """Starts the relay, or starts it again with the ports it had, and remembers it.

    Raises:
        Failed: when it does not come up.
    """
    from serve_app.cli.regions import running
    from serve_app.edge import ray_cluster

    state = home.read()
    before = state["links"] or {}
    if before:
        ray_cluster.stop(running(before))
    folder = ray_cluster.new_temp_dir()
    record: dict[str, Any] = {"temp_dir": str(folder), "pids": [], "ports": before.get("ports", {})}
    # Written before there is a process: a command that dies right after its child started leaves what finds it.
    home.write({**home.read(), "links": record})
    links = json.dumps(wanted(config, record["ports"]))
    with (home.root / "relay.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve_app.edge.tcp_relay", str(folder)],
            env={**os.environ, ray_cluster.MARK: str(folder)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    record |= {"pids": [process.pid], "started_unix_s": ray_cluster.started_unix_s(process.pid)}
    told = _first_line(process, links)
    if not told:
        said = (home.root / "relay.log").read_text(errors="replace")[-1000:]
        raise Failed(f"the relay between regions did not come up; it said:\n{said}")
    record["ports"] = json.loads(told)
    home.write({**home.read(), "links": record})
    for part in [*state["regions"], state["coordinator"] or {}]:
        if "listen" in part:
            lead(record, COORDINATOR if part["name"] == CONTROL else part["name"], part["listen"])
    return record


def _first_line(process: subprocess.Popen[bytes], text: str) -> bytes:
    """Tells a process ``text``, and hears its first line; one that says nothing is ended."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(text.encode())
        process.stdin.close()
    line = process.stdout.readline()
    process.stdout.close()
    if not line:
        process.kill()
        process.wait()
    return line


def seen_by(config: Config, record: dict[str, Any], dialler: str, listen: str) -> Config:
    """The configuration as one part of the federation has it, :data:`COORDINATOR` or a region.

    Each other part is dialled through the relay; itself it is reached at ``listen``.
    """
    federation = config.federation
    coordinator = federation.spec.coordinator
    regions = []
    for region in federation.spec.regions:
        update: dict[str, Any] = {}
        if region.gateway is not None:
            mine = region.name == dialler
            update["gateway"] = _at(record, ANYONE if mine or dialler == COORDINATOR else dialler, region.name)
            update |= {"gateway_listen": listen} if mine else {}
        regions.append(region.model_copy(update=update))
    assert coordinator is not None
    if dialler == COORDINATOR:
        update = {"address": _at(record, ANYONE, COORDINATOR), "listen": listen}
    else:
        update = {"address": _at(record, dialler, COORDINATOR)}
    update = {"regions": tuple(regions), "coordinator": coordinator.model_copy(update=update)}
    spec = federation.spec.model_copy(update=update)
    return replace(config, federation=federation.model_copy(update={"spec": spec}))


def address_of(record: dict[str, Any], dialled: str) -> str:
    """Where anyone on this machine, ``grix`` too, reaches a part of the federation."""
    return _at(record, ANYONE, dialled)


def _at(record: dict[str, Any], dialler: str, dialled: str) -> str:
    return f"127.0.0.1:{record['ports'][line(dialler, dialled)]}"


def relay(record: dict[str, Any]) -> Any:
    """The running relay, to be ruled."""
    from serve_app.edge.tcp_relay import Relay

    return Relay(Path(record["temp_dir"]) / "relay.sock")


def lead(record: dict[str, Any], dialled: str, address: str) -> None:
    """Lets every line to ``dialled`` end at ``address``, where it listens from now on."""
    change(record, {name: {"target": address} for name in record["ports"] if name.endswith(f">{dialled}")})


def covers(config: Config, record: dict[str, Any]) -> bool:
    """Whether the relay has every line that this federation needs."""
    return set(wanted(config, {})) <= set(record["ports"])


def change(record: dict[str, Any], changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Changes lines, all at once; the state of every line.

    Raises:
        Failed: when the relay is gone or refuses.
    """
    try:
        return dict(relay(record).set(changes))
    except OSError as error:
        raise Failed(f"the relay between regions does not answer ({error}); run grix up again") from None
    except ValueError as error:
        raise Failed(str(error), BAD_USAGE) from None


def set_line(home: Home, dialler: str, dialled: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Changes one line, or with no ``fields`` nothing; the state of every line.

    Raises:
        Failed: without a relay, and with exit status 2 for a line that there is not.
    """
    record = home.read()["links"]
    if record is None:
        raise Failed("no federation with lines between its parts is up in this folder; start one with: grix up")
    return change(record, {line(dialler, dialled): fields})


def text_of(told: dict[str, Any]) -> str:
    """The lines for people."""
    rows = [
        [name, state["flow"], f"{state['delay_ms']:g}", state["bytes_per_s"], state["connections"], state["target"]]
        for name, state in told.items()
    ]
    head = ["line", "flow", "delay ms", "bytes/s", "connections", "leads to"]
    return render(head, rows, frozenset(head[2:5]))


def around(record: dict[str, Any], region: str) -> list[str]:
    """Every line that begins or ends at a region."""
    return [name for name in record["ports"] if region in name.split(">")]


def end(home: Home) -> None:
    """Ends the relay and removes what was made for it.

    Raises:
        Failed: when it survives even SIGKILL.
    """
    from serve_app.cli.regions import running
    from serve_app.edge import ray_cluster

    record = home.read()["links"]
    if record is None:
        return
    survivors = ray_cluster.stop(running(record))
    if survivors:
        raise Failed(f"the relay between regions (process {survivors[0]}) does not end; run grix down again")
    home.forget_links()
