"""Which regions are drained, as the last plan said: for a RegionAgent that starts while the coordinator is away."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from serve_app.core.reports import FleetRegion, Plan
from serve_app.edge.private_file import write_private

log = logging.getLogger("ray.serve")

_FILE: Final = "drains.json"


class DrainFile:
    """One small file in a folder that lives as long as the cluster; ``None``: nothing outlives this process."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE
        self._kept: dict[str, bool] = {}

    def read(self) -> Plan | None:
        """A plan that says nothing but this; no later plan is older than it. ``None`` without a file of ours."""
        if self._file is None:
            return None
        try:
            kept = json.loads(self._file.read_text("utf-8"))
            self._kept = {str(name): bool(drained) for name, drained in kept["drained"].items()}
            epoch, generation = (int(part) for part in kept["order"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is not read: %s", self._file, error)
            return None
        regions = tuple(FleetRegion(name, "joining", "", drained) for name, drained in self._kept.items())
        return Plan(epoch, generation, regions)

    def keep(self, plan: Plan) -> None:
        """Writes when a drain has changed, which is seldom."""
        drained = {region.name: region.drained for region in plan.regions}
        if self._file is None or drained == self._kept:
            return
        try:
            write_private(self._file, json.dumps({"order": plan.order, "drained": drained}))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)
            return
        self._kept = drained
