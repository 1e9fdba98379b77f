"""Two at a time: one process has the tests that start clusters, so that never two of them share the cores."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLUSTERS = (HERE / "contract", HERE / "e2e")


# First: xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in CLUSTERS):
            item.add_marker(pytest.mark.xdist_group("clusters"))
