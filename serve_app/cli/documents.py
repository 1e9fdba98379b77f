"""From paths on the command line to a configuration, with faults as the command's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_app.cli.say import BAD_USAGE, Failed, note

if TYPE_CHECKING:
    from cluster_configs.load import Config


def load(paths: Sequence[Path] | None, extra: Sequence[Mapping[str, Any]] = ()) -> Config:
    """The configuration in the paths given, else in the shipped set for one machine. Every fault is in the message.

    Raises:
        Failed: with exit status 2.
    """
    from cluster_configs.load import ConfigError, chosen, load_paths, local_paths

    taken, left = chosen(paths) if paths else (local_paths(), [])
    if left and not extra:
        note(f"local.yaml is read, and not {', '.join(map(str, left))}; name the files and folders to choose others")
    try:
        return load_paths(taken, os.environ, extra)
    except ConfigError as error:
        raise Failed("\n".join(str(fault) for fault in error.faults), BAD_USAGE) from None


def check_model(model: str | None) -> None:
    """Refuses what ``--model`` cannot mean before anything is made.

    Raises:
        Failed: with exit status 2.
    """
    from serve_app.edge.model_files import ModelError, as_model_path

    try:
        if model is not None:
            as_model_path(model)
    except ModelError as error:
        raise Failed(str(error), BAD_USAGE) from None


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
