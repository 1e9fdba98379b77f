"""Where a drill happens, and the hold it has there: processes, lines, and the way back up."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import clusters, links, regions
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home

if TYPE_CHECKING:
    import psutil

POLL_S: Final = 0.25


@dataclass(slots=True)
class Scene:
    """Where a drill happens: what is up in a folder, and the region that it is about."""

    home: Home
    region: str
    progress: Progress
    wait_s: float = 300.0

    @property
    def record(self) -> dict[str, Any]:
        """The region as the state has it now."""
        return next(r for r in self.home.read()["regions"] if r["name"] == self.region)

    @property
    def lines(self) -> dict[str, Any]:
        """The lines of the federation.

        Raises:
            Failed: when its parts are not joined by a relay.
        """
        record = self.home.read()["links"]
        if record is None:
            raise Failed("this drill needs the relay between regions of one machine; start them with: grix up")
        return dict(record)

    def processes(self, record: Mapping[str, Any]) -> list[psutil.Process]:
        from serve_app.edge import ray_cluster

        return ray_cluster.processes(regions.running(dict(record)))

    def engines(self) -> list[int]:
        """The processes of the region's engines, below their replicas.

        Raises:
            Failed: when there is none to make a fault with.
        """
        found = [p.pid for p in self.processes(self.record) if _is_engine(p)]
        if not found:
            raise Failed(f"{self.region}: no process of an engine was found")
        return found

    def replicas(self) -> list[int]:
        """The processes of the region's agents."""
        from serve_app.edge.serve_rest import ServeRestError

        try:
            apps = clusters.rest_of(self.record).details()["applications"]
        except ServeRestError:
            # A machine whose cores all start an engine is slow to answer.
            return []
        rows = [r for app in apps.values() for r in app["deployments"].get("QwenAgent", {}).get("replicas", [])]
        return [r["pid"] for r in rows if r["state"] == "RUNNING"]

    def wait_tokens(self, other_than: Collection[int] = ()) -> None:
        """Waits until the region makes tokens again, with replicas that are not these.

        Raises:
            Failed: after ``wait_s``.
        """
        until_s = time.monotonic() + self.wait_s
        while True:
            there = self.replicas()
            if there and not set(there) & set(other_than) and regions.deep_health(self.record)[0]:
                return
            if time.monotonic() > until_s:
                raise Failed(f"{self.region} makes no tokens {self.wait_s:.0f} s after the fault; see grix status")
            time.sleep(POLL_S)

    def set_lines(self, names: list[str], **fields: Any) -> None:
        links.change(self.lines, dict.fromkeys(names, fields))


def _is_engine(process: psutil.Process) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return "VLLM::" in " ".join(process.cmdline())
    return False


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def bring_back(scene: Scene, record: dict[str, Any], start: Callable[[], clusters.Starting]) -> None:
    """Removes what a dead cluster left and starts it again; a second time where a busy machine let the first one down.

    Raises:
        Failed: of the second time.
    """
    regions.end(record, scene.home, scene.progress)
    try:
        clusters.together([start()])
    except Failed as error:
        scene.progress.tell(f"{record['name']}: {str(error).splitlines()[0]}; once more")
        for left in scene.home.records():
            if left["name"] == record["name"]:
                regions.end(left, scene.home, scene.progress, keep_log=True)
        clusters.together([start()])
