"""What a region's folder keeps for its tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serve_app.cli import region_redis
from serve_app.edge.task_seals import LEAST_CHARS, read_secret


def test_the_secret_of_tasks_is_private_and_stays_from_start_to_start(tmp_path: Path) -> None:
    def started() -> str:
        config: dict[str, Any] = {"region": {"tasks": {}}, "again": {}}
        region_redis.use_task_secret(tmp_path, {"applications": [{"deployments": [{"user_config": config}]}]})
        file = config["region"]["tasks"]["secretFile"]
        assert config["again"]["task_secret"] == file and Path(file).stat().st_mode & 0o777 == 0o600
        return read_secret(file).decode()

    first = started()
    assert len(first) == 2 * LEAST_CHARS and started() == first
