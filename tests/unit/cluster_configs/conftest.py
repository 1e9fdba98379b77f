from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster_configs.load import validate

Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Faults of one file ``f.yaml`` with this text, each without the file's name: ``line: path: message``."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, **env: str) -> list[str]:
        content = text.encode("utf-8") if isinstance(text, str) else text
        (tmp_path / "f.yaml").write_bytes(content)
        lines = validate([Path("f.yaml")], env)
        assert all(line.startswith("f.yaml:") for line in lines), lines
        return [line.removeprefix("f.yaml:") for line in lines]

    return run
