"""Two processes: one has all tests that start clusters, so that no two of them share the cores, the other the rest."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ClustersInOne(LoadScopeScheduling):
    """A file is in one process, and all files of tests with clusters are in the same."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "clusters" if file.startswith(("tests/contract/", "tests/e2e/")) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ClustersInOne(config, log) if config.getvalue("dist") == "loadscope" else None
