"""The faults that drills make, each with the way back."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from serve_app.cli import control, links, start_region
from serve_app.cli.drill_scene import Scene, bring_back, send
from serve_app.cli.say import Failed
from serve_app.core.drill_verdict import Drill

#: An engine that is slow on purpose stands still for so long, runs for so long, and again: one first token in seven
#: takes longer than what counts as slow, and none as long as what counts as stalled. Between two stops there is time
#: for a few steps: processes of an engine that wake together need some to find each other.
SLOW_STOP_S: Final = 1.9
SLOW_RUN_S: Final = 0.8


@dataclass(slots=True)
class Fault(ABC):
    """One kind of fault. ``hold_s`` is how long it stays before it is removed; ``entry_goes``: nobody answers there."""

    scene: Scene
    hold_s: float = 12.0
    entry_goes: bool = False

    def prepare(self) -> None:  # noqa: B027 - most faults need none
        """What takes time and is no fault yet."""

    @abstractmethod
    def strike(self) -> None:
        """The fault itself."""

    @abstractmethod
    def restore(self) -> None:
        """Makes the world whole again; returns when what was ended is back."""


@dataclass(slots=True)
class KillRegion(Fault):
    """SIGKILL for every process of the region's cluster at one moment, its Redis too."""

    hold_s: float = 6.0
    entry_goes: bool = True
    _pids: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self._pids = [p.pid for p in self.scene.processes(self.scene.record)]

    def strike(self) -> None:
        send(self._pids, signal.SIGKILL)
        # What was born while the others died.
        send([p.pid for p in self.scene.processes(self.scene.record)], signal.SIGKILL)

    def restore(self) -> None:
        scene = self.scene
        wanted = start_region.as_before(scene.record, scene.wait_s)
        bring_back(
            scene,
            scene.record,
            lambda: start_region.start_region(scene.region, wanted, scene.home, scene.progress),
        )


@dataclass(slots=True)
class Partition(Fault):
    """Nothing gets through any more between the region and everybody else of the federation; clients reach it."""

    def strike(self) -> None:
        self.scene.set_lines(links.around(self.scene.lines, self.scene.region), flow="stalled")

    def restore(self) -> None:
        self.scene.set_lines(links.around(self.scene.lines, self.scene.region), flow="open")


@dataclass(slots=True)
class HalfPartition(Fault):
    """Nothing gets through any more between the region and the coordinator; its peers hear it."""

    @property
    def _line(self) -> list[str]:
        return [links.line(self.scene.region, links.COORDINATOR)]

    def strike(self) -> None:
        self.scene.set_lines(self._line, flow="stalled")

    def restore(self) -> None:
        self.scene.set_lines(self._line, flow="open")


@dataclass(slots=True)
class Stall(Fault):
    """The region's engines stand still (SIGSTOP) with their work in them, and their replicas do not."""

    _pids: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self._pids = self.scene.engines()

    def strike(self) -> None:
        send(self._pids, signal.SIGSTOP)

    def restore(self) -> None:
        """Serve has put others in the place of those that stood still for too long; they may have to load first."""
        send(self._pids, signal.SIGCONT)
        self.scene.wait_tokens()


@dataclass(slots=True)
class Slow(Fault):
    """The region's engines stand still most of the time, and never for long."""

    hold_s: float = 20.0
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pids: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self._pids = self.scene.engines()
        self._ending.clear()

    def _run(self) -> None:
        while not self._ending.is_set():
            send(self._pids, signal.SIGSTOP)
            self._ending.wait(SLOW_STOP_S)
            send(self._pids, signal.SIGCONT)
            self._ending.wait(SLOW_RUN_S)

    def strike(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def restore(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()


@dataclass(slots=True)
class KillCoordinator(Fault):
    """SIGKILL for every process of the control cluster at one moment."""

    hold_s: float = 8.0
    _pids: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self._pids = [p.pid for p in self.scene.processes(self._record)]

    @property
    def _record(self) -> dict[str, Any]:
        return dict(self.scene.home.read()["coordinator"])

    def strike(self) -> None:
        send(self._pids, signal.SIGKILL)

    def restore(self) -> None:
        scene, record = self.scene, self._record
        wanted = start_region.as_before(record, scene.wait_s)
        bring_back(scene, record, lambda: control.start_control(wanted, scene.home, scene.progress))


@dataclass(slots=True)
class KillReplica(Fault):
    """SIGKILL for the replicas of the region's agents; Serve starts others."""

    hold_s: float = 5.0
    _pids: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        self._pids = self.scene.replicas()
        if not self._pids:
            raise Failed(f"{self.scene.region}: no replica of an agent is running")

    def strike(self) -> None:
        send(self._pids, signal.SIGKILL)

    def restore(self) -> None:
        """Serve does it."""
        self.scene.wait_tokens(other_than=self._pids)


@dataclass(slots=True)
class BadCert(Fault):
    """The region has a certificate of a stranger's authority, for its own name, when it dials and is dialled again."""

    _kept: Path | None = None

    def _folder(self) -> Path:
        coordinator = self.scene.home.read()["coordinator"]
        return Path(coordinator["pki"]) / "region" / self.scene.region

    def _dial_again(self) -> None:
        lines = links.around(self.scene.lines, self.scene.region)
        self.scene.set_lines(lines, flow="cut")
        self.scene.set_lines(lines, flow="open")

    def strike(self) -> None:
        from serve_app.edge import pki

        folder = self._folder()
        federation = pki.read(folder).identity.federation
        with tempfile.TemporaryDirectory(prefix="grix-stranger-") as stranger:
            pki.init(Path(stranger), federation, [self.scene.region], datetime.now(UTC))
            self._kept = folder.with_name(f".{folder.name}.kept")
            folder.rename(self._kept)
            shutil.copytree(Path(stranger) / "region" / self.scene.region, folder, symlinks=True)
        self._dial_again()

    def restore(self) -> None:
        """Whoever was refused dials again by himself; a line that is cut now would disturb what runs well."""
        folder = self._folder()
        if self._kept is not None:
            shutil.rmtree(folder, ignore_errors=True)
            self._kept.rename(folder)
            self._kept = None


FAULTS: Final[Mapping[Drill, type[Fault]]] = {
    "kill-region": KillRegion,
    "partition": Partition,
    "half-partition": HalfPartition,
    "stall": Stall,
    "slow": Slow,
    "kill-coordinator": KillCoordinator,
    "kill-replica": KillReplica,
    "bad-cert": BadCert,
}
