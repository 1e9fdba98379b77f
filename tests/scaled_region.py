"""A cluster that serves agents as they are rendered, with stubs in place of engines and an entry in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_configs.kind_agent import AgentSpec
from serve_app.core.preempt import Change
from serve_app.edge import ports_free, ray_cluster
from serve_app.edge.agent_app import agent_app
from serve_app.edge.config_keeper import ConfigKeeper
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.preemption import Preemption
from serve_app.edge.serve_rest import ServeRest, ServeRestError

ROOT = str(Path(__file__).parents[1])
SLOTS = 4
COOLDOWN_S = 10.0
TOTAL_S = 60.0
#: What a replica's window and Serve's average need to forget a load.
WINDOW_S = 12.0
SPEC: dict[str, Any] = {
    "version": "1",
    "duty": "chat",
    "model": "stub",
    "storage": {"modelPath": "smollm2"},
    "engine": {"maxNumSeqs": SLOTS, "kvCacheMemory": "128Mi"},
    "minReplicas": 1,
    "maxReplicas": 2,
    "timeouts": {"total": f"{TOTAL_S:.0f}s"},
    "scaleTriggers": [
        {"metric": "queue_ms", "above": 250, "action": "scale_up"},
        {"metric": "queue_ms", "below": 50, "action": "scale_down", "cooldown": f"{COOLDOWN_S:.0f}s"},
    ],
}
ARGS = {"agent": "qwen-chat", "model_path": "smollm2", "engine": {}, "engine_digest": "0123456789abcdef"}
NAME = "qwen-chat--01234567"
#: A less important agent.
DOC = "qwen-doc--89abcdef"
DOC_ARGS = {**ARGS, "agent": "qwen-doc", "engine_digest": "89abcdef01234567"}
#: What the cluster has, with a resource of its own in place of GPUs.
RESOURCES = {"CPU": 4.0, "gpu_slot": 3.0}


def top(port: int) -> dict[str, Any]:
    """What stands above the applications."""
    return {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}


def engine(args: dict[str, Any], priority: int, slots: int, **changes: Any) -> dict[str, Any]:
    """An engine's application; ``changes`` are keys of the agent's spec, ``slots`` what a replica takes of those."""
    app = agent_app(AgentSpec.model_validate({**SPEC, **changes}), args, "cloud-a", 2.0, priority)
    app |= {"import_path": "tests.scaled_agent:build_agent", "args": {}}
    app["deployments"][0] |= {"ray_actor_options": {"num_cpus": 0.1, "resources": {"gpu_slot": slots}}}
    return app


def with_entry(port: int, *engines: dict[str, Any]) -> dict[str, Any]:
    """The Serve config."""
    entry = {"name": "entry", "route_prefix": "/", "import_path": "tests.scaled_agent:build_entry", "args": {}}
    entry["deployments"] = [{"name": "Entry", "ray_actor_options": {"num_cpus": 0.1}}]
    return {**top(port), "applications": [entry, *engines]}


def config(port: int, **changes: Any) -> dict[str, Any]:
    """One agent alone; ``changes`` are keys of its spec."""
    return with_entry(port, engine(ARGS, 100, 0, **changes))


@dataclass
class Kept:
    """What a keeper of the Serve config did."""

    #: How far its clock is ahead.
    ahead_s: float = 0.0
    put_back: list[int] = field(default_factory=list)
    changes: list[Change | None] = field(default_factory=list)

    @property
    def changed(self) -> list[Change]:
        return [change for change in self.changes if change is not None]


@dataclass
class Serving:
    """A cluster that serves the agent."""

    rest: ServeRest
    port: int
    metrics_port: int
    #: Of each call that has begun, and of each that has ended well, the process that runs it.
    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def put(self, **changes: Any) -> None:
        """Another config of the one agent; returns when all of it runs."""
        self.put_all(config(self.port, **changes))

    def put_all(self, config: dict[str, Any]) -> None:
        """Another config; returns when all of it runs."""
        self.rest.put_config(config)
        self.until(lambda: {app.status for app in self.rest.status()} == {"RUNNING"}, 120.0)

    def ask(self, seconds: float, leaves_s: float = 60.0, app: str = NAME) -> int:
        """Status of one call; 0 when the caller left before an answer, 599 for a stream that broke."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=leaves_s)
        try:
            connection.request("GET", f"/?seconds={seconds}&app={app}")
            answer = connection.getresponse()
            if answer.status != 200:
                answer.read()
                return answer.status
            self.begun.append(int(answer.readline()))
            self.ended.append(int(answer.read()))
            return 200
        except (http.client.HTTPException, ValueError):
            return 599
        except TimeoutError:
            return 0
        finally:
            connection.close()

    @contextlib.contextmanager
    def asking(
        self, count: int, seconds: float, leaves_s: float = 60.0, gap_s: float = 0.0, app: str = NAME
    ) -> Iterator[list[int]]:
        """``count`` callers at once, each with one call after the other (``gap_s`` between) until the block ends."""
        done, statuses = threading.Event(), list[int]()

        def caller() -> None:
            while not done.is_set():
                statuses.append(self.ask(seconds, leaves_s, app))
                done.wait(gap_s)

        threads = [threading.Thread(target=caller) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield statuses
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def replicas(self, name: str = NAME) -> dict[str, int]:
        """Replicas by state."""
        (app,) = [app for app in self.rest.status() if app.name == name]
        return dict(app.deployments[0].replicas)

    def most(self, name: str) -> int:
        """The maximum of replicas that is in force."""
        app = self.rest.details()["applications"][name]["deployed_app_config"]
        return int(app["deployments"][0]["autoscaling_config"]["max_replicas"])

    def target(self) -> int:
        (app,) = [app for app in self.rest.status() if app.name == NAME]
        return int(app.deployments[0].target_replicas or 0)

    def pids(self, name: str = NAME) -> set[int]:
        rows = self.rest.details()["applications"][name]["deployments"]["QwenAgent"]["replicas"]
        return {row["pid"] for row in rows if row["state"] == "RUNNING"}

    @contextlib.contextmanager
    def kept(self, folder: Path) -> Iterator[Kept]:
        """The region's keeper of the Serve config at work; ``folder`` is what it remembers."""
        kept, loop = Kept(), asyncio.new_event_loop()
        writer, now_s = ConfigWriter(self.rest, folder), lambda: time.monotonic() + kept.ahead_s
        preemption = Preemption(
            writer, now_s=now_s, resources=lambda: RESOURCES, on_decision=lambda d: kept.changes.append(d.change)
        )
        keeper = ConfigKeeper(
            writer,
            now_s=now_s,
            sleep=asyncio.sleep,
            is_idle=lambda app: True,
            on_revision=lambda revision: None,
            on_put_back=kept.put_back.append,
            preemption=preemption,
        )
        keeper.configure({"top": top(self.port)})
        task = loop.create_task(keeper.run())
        thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
        thread.start()
        try:
            yield kept
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
            loop.close()

    def metric(self, name: str, *labels: str) -> float | None:
        """The node's last export of a metric with all of these labels; ``None`` before the first."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found = re.findall(rf"^ray_{name}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
        values = [float(value) for told, value in found if all(f'"{label}"' in told for label in labels)]
        return values[-1] if values else None

    def until(self, holds: Callable[[], bool], limit_s: float = 60.0) -> float:
        """Seconds until it is so."""
        began_s = time.monotonic()
        while not self._is(holds):
            assert time.monotonic() - began_s < limit_s, self.rest.status()
            time.sleep(0.2)
        return time.monotonic() - began_s

    def _is(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except (ServeRestError, OSError, ValueError):
            return False


@contextlib.contextmanager
def running() -> Iterator[Serving]:
    """Starts the cluster, and ends exactly what it started."""
    with tempfile.TemporaryDirectory(prefix="grix-scaling-") as name:
        token, token_file = secrets.token_hex(32), Path(name) / "token"
        token_file.touch(0o600)
        token_file.write_text(token)
        first = ports_free.free_block(ray_cluster.BLOCK, random.SystemRandom())
        cluster = ray_cluster.Cluster(first, token_file, ray_cluster.new_temp_dir(), int(RESOURCES["CPU"]), None)
        own = {name: amount for name, amount in RESOURCES.items() if name != "CPU"}
        environment = {**os.environ, "PYTHONPATH": ROOT, "RAY_OVERRIDE_RESOURCES": json.dumps(own)}
        process = ray_cluster.start(cluster, Path(name) / "ray.log", environment)
        started = ray_cluster.Running(process.pid, ray_cluster.started_unix_s(process.pid), cluster.temp_dir)
        try:
            made = Serving(ServeRest(cluster.dashboard, token), cluster.spare_port, first + 4)
            made.until(lambda: made.rest.details() is not None, 120.0)
            made.put()
            yield made
        finally:
            assert ray_cluster.stop(started) == []
