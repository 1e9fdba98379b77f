"""From paths on the command line to a configuration, with faults as the command's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_app.cli.say import BAD_USAGE, Failed

if TYPE_CHECKING:
    from cluster_configs.load import Config


def config_paths(paths: Sequence[Path] | None) -> list[Path]:
    """The paths given, else the shipped set for one machine."""
    from cluster_configs.load import local_paths

    return list(paths) if paths else local_paths()


def load(paths: Sequence[Path] | None, extra: Sequence[Mapping[str, Any]] = ()) -> Config:
    """The configuration; every fault is in the message of what is raised.

    Raises:
        Failed: with exit status 2.
    """
    from cluster_configs.load import ConfigError, load_paths

    try:
        return load_paths(config_paths(paths), os.environ, extra)
    except ConfigError as error:
        raise Failed("\n".join(str(fault) for fault in error.faults), BAD_USAGE) from None


def render(config: Config, region: str, port: int, model: str | None, open_access: bool) -> dict[str, Any]:
    """A region's Serve config.

    Raises:
        Failed: with exit status 2, for an unknown region or a model that is not there.
    """
    from serve_app.edge import serve_config
    from serve_app.edge.model_files import ModelError

    found = config.federation.region(region)
    host = found.http.host if found is not None else "127.0.0.1"
    try:
        return serve_config.render(config, region, http_host=host, http_port=port, model=model, open_access=open_access)
    except (LookupError, ModelError) as error:
        raise Failed(str(error.args[0] if error.args else error), BAD_USAGE) from None
