"""The official OpenAI client for Node against the real region. npm puts it beside ``conformance.mjs``, once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import LiveRegion
from tests.e2e.test_openai_client import answer_and_question

FOLDER = Path(__file__).with_name("node")
UNREACHABLE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|E40[134]|ENOTCACHED")


def installed() -> str:
    """The version that is there, or nothing."""
    package = FOLDER / "node_modules/openai/package.json"
    return str(json.loads(package.read_text())["version"]) if package.exists() else ""


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the pinned client beside the script."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.skip("node and npm are not installed")
    pinned = json.loads((FOLDER / "package.json").read_text())["dependencies"]["openai"]
    if installed() != pinned:
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=180)
        if done.returncode != 0 and UNREACHABLE.search(done.stderr):
            pytest.skip(f"npm cannot reach its registry: {done.stderr[:300]}")
        assert done.returncode == 0, done.stderr[-2000:]
    assert installed() == pinned
    return program


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in (FOLDER / "package-lock.json").read_text()


def test_the_node_client(region: LiveRegion, node: str) -> None:
    answer, question = answer_and_question("ko")
    environment = {**os.environ, "GRIX_URL": region.url, "GRIX_KEY": region.key, "GRIX_QUESTION": question}
    command = [node, "conformance.mjs"]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["models"][0] == "auto" and "qwen-chat" in told["models"]
    assert (told["content"], told["finish"]) == (answer, "stop")
    assert (told["streamed"], told["usages"], told["gathered"]) == (answer, 1, answer)
    assert told["call"]["name"] == "order_status"
    for text in (told["call"]["arguments"], told["formatted"]):
        assert json.loads(text)["order_id"] in ("A1024", "B2048")
    assert told["errors"] == {
        "BadRequestError": {"right": True, "param": "temperature", "code": "invalid_value"},
        "NotFoundError": {"right": True, "param": "model", "code": "model_not_found"},
    }
