"""One real region for all end-to-end tests: a Ray cluster, Router, LanguageDetector and vLLM with tiny-qwen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster_configs.load import SHIPPED
from serve_app.edge.model_files import embedded
from tests.stub_region import StubRegion, running_stub_region

HEALTH_KEY = "grix-health-of-the-test-region"


@dataclass(frozen=True)
class LiveRegion:
    """Where the region answers, its key, and the folder ``grix`` was started in."""

    url: str
    key: str
    folder: Path
    record: dict[str, Any]

    @property
    def documents(self) -> list[str]:
        """What it was started with."""
        return documents_in(self.folder)

    def grix(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return grix(self.folder, *arguments, check=check)

    def ask(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, lower-case headers, and the JSON body (or bytes) of one request with the region's key."""
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {"authorization": f"Bearer {self.key}", **(headers or {})}
        request = urllib.request.Request(self.url + path, raw, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                status, got, told = answer.status, answer.read(), dict(answer.headers.items())
        except urllib.error.HTTPError as error:
            status, got, told = error.code, error.read(), dict(error.headers.items())
        try:
            parsed: Any = json.loads(got)
        except ValueError:
            parsed = got
        return status, {k.lower(): v for k, v in told.items()}, parsed

    def chat(self, text: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
        headers = fields.pop("headers", None)
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        return self.ask("POST", "/v1/chat/completions", body, headers)


def grix(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One ``grix`` command in ``folder``."""
    command = [sys.executable, "-m", "serve_app.cli", *arguments]
    env = {**os.environ, "GRIX_HEALTH_KEY": HEALTH_KEY, "GRIX_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=env)
    if check and done.returncode != 0:
        said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        pytest.fail(f"grix {' '.join(arguments)} ended {done.returncode}:\n{said}")
    return done


def of_this_region(temp_dir: str) -> list[psutil.Process]:
    """Processes whose command line or environment names the region's folder for temporary files."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(temp_dir in part for part in process.cmdline())
            if named or any(temp_dir in value for value in process.environ().values()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def alone(folder: Path, model_path: str) -> list[str]:
    """The shipped set for one machine with its first region only, and no coordinator: nobody else writes its config.

    The model is that of the shipped set, at another place.
    """
    documents = list(yaml.safe_load_all((SHIPPED / "local.yaml").read_text()))
    for document in documents:
        spec = document["spec"]
        spec.pop("languageAffinity", None)
        if document["kind"] == "Federation":
            del spec["coordinator"], spec["health"]
            spec["regions"] = [{k: v for k, v in spec["regions"][0].items() if k != "gateway"}]
        elif "storage" in spec:
            spec["storage"] = {"modelPath": model_path}
    (folder / "set.yaml").write_text(yaml.safe_dump_all(documents))
    return documents_in(folder)


def documents_in(folder: Path) -> list[str]:
    return [str(folder / "set.yaml"), str(SHIPPED / "routes.yaml"), str(SHIPPED / "templates")]


@pytest.fixture(scope="session")
def region() -> Iterator[LiveRegion]:
    # A socket's path may have 107 characters, so the folder is not under pytest's long one.
    with tempfile.TemporaryDirectory(prefix="grix-e2e-") as name:
        folder = Path(name)
        version = f"file://{folder}/store/tiny-qwen/v1"
        grix(folder, "model", "push", str(embedded("tiny-qwen")), version)
        grix(folder, "up", "--config", *alone(folder, version))
        record = json.loads((folder / ".grix/state.json").read_text())["regions"][0]
        try:
            yield LiveRegion(record["url"], Path(record["key_file"]).read_text().strip(), folder, record)
        finally:
            grix(folder, "down")
        left = [p.cmdline() for p in of_this_region(record["temp_dir"])]
        assert left == []
        assert not Path(record["temp_dir"]).exists()
        assert not (folder / ".grix/state.json").exists()


@pytest.fixture(scope="session")
def stub_region() -> Iterator[StubRegion]:
    """A region of scripted engines; see :mod:`tests.stub_agent`."""
    with running_stub_region() as made:
        yield made
