"""For all tests: how many examples a property gets, and which process a test runs in.

With two processes one has all tests that start clusters, so that no two of them share the cores, the other the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no fault. Properties whose examples cost much have fewer of them, which stand there.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _PATIENT, max_examples=30)
settings.register_profile("thorough", _PATIENT, max_examples=150)
settings.load_profile("quick")


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Iterator[None]:
    """The power does not fail under a test; thousands of syncs cost the most of ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


class ClustersInOne(LoadScopeScheduling):
    """A file is in one process, and all files of tests with clusters are in the same."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "clusters" if file.startswith(("tests/contract/", "tests/e2e/")) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ClustersInOne(config, log) if config.getvalue("dist") == "loadscope" else None
