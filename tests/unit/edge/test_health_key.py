"""The health key: in a private file, in no child's environment, and the same key when it is read."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from serve_app.edge import ray_cluster
from serve_app.edge.health_key import FILE_VARIABLE, VARIABLE, health_key, hidden


def test_a_key_moves_from_the_environment_to_a_private_file(tmp_path: Path) -> None:
    base = {VARIABLE: " pulse\n", "HOME": "/h"}
    env = hidden(base, tmp_path)
    assert env == {"HOME": "/h", FILE_VARIABLE: str(tmp_path / "health_key")}
    assert stat.S_IMODE((tmp_path / "health_key").stat().st_mode) == 0o600
    assert health_key(env) == health_key(base) == "pulse"


@pytest.mark.parametrize("env", [{}, {VARIABLE: ""}, {VARIABLE: " \n"}])
def test_no_key_is_no_key(env: dict[str, str], tmp_path: Path) -> None:
    assert hidden(env, tmp_path) == {} and list(tmp_path.iterdir()) == []
    assert health_key(env) is None


def test_a_file_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        health_key({FILE_VARIABLE: str(tmp_path / "none")})


def test_no_process_of_a_cluster_has_the_key_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ray_cluster.Cluster(20000, tmp_path / "token", tmp_path, 4)
    show = "import os; [print(f'{n}={v}') for n, v in os.environ.items()]"
    monkeypatch.setattr(ray_cluster, "command", lambda _: [sys.executable, "-c", show])
    ray_cluster.start(cluster, tmp_path / "log", {VARIABLE: "pulse"}).wait(30)
    env = dict(line.split("=", 1) for line in (tmp_path / "log").read_text().splitlines())
    assert "pulse" not in env.values() and health_key(env) == "pulse"
