"""A real Valkey for a test, that can be killed and started again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from serve_app.edge import valkey
from serve_app.edge.ports_free import free_block

PASSWORD = "not-a-secret-in-a-test"
TASK_SECRET = "no-more-a-secret-than-the-password"


@dataclass
class Store:
    """A real server that can be killed and started again on its port."""

    folder: Path
    tasks: bool = True
    port: int = field(default_factory=lambda: free_block(1, random.SystemRandom()))
    server: valkey.Valkey | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def password_file(self) -> str:
        return str(self.folder / "password")

    @property
    def task_secret_file(self) -> str:
        return str(self.folder / "task_secret")

    def begin(self) -> None:
        (self.folder / "task_secret").write_text(TASK_SECRET + "\n")
        (self.folder / "password").write_text(PASSWORD + "\n")
        self.server = valkey.start(self.port, PASSWORD, self.folder / "valkey.log", self.folder, {}, tasks=self.tasks)

    def process(self) -> psutil.Process:
        """The server itself, to be frozen; who kills it sees it started again."""
        assert self.server is not None
        (server,) = psutil.Process(self.server.pid).children()
        return server

    def end(self) -> None:
        if self.server is not None:
            assert valkey.stop(self.server.pid, self.server.started_unix_s)
            self.server = None
