"""Real certificates for tests: made once a test run for what is valid, anew for what is not."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serve_app.edge import pki
from serve_app.edge.identity import Identity

FEDERATION = "demo"
REGIONS = ("cloud-a", "cloud-b", "edge-1")


def region(name: str, federation: str = FEDERATION) -> Identity:
    return Identity(federation, "region", name)


def made(root: Path, federation: str = FEDERATION) -> Path:
    """A folder of certificates for the coordinator, three regions and an operator."""
    pki.init(root, federation, REGIONS, datetime.now(UTC))
    return root


def reissue(root: Path, identity: Identity, to: Path, *, valid_from_now_s: float = 3600.0) -> Path:
    """A certificate of the same authority, in a folder of its own."""
    scratch = to.with_name(to.name + "-root")
    shutil.copytree(root / "ca", scratch / "ca")
    now = datetime.now(UTC) + timedelta(seconds=valid_from_now_s) - timedelta(days=1)
    pki.issue(scratch, pki.read_authority(scratch), identity, now, days=1)
    shutil.copytree(scratch / identity.path, to)
    return to
