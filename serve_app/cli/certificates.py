"""The certificates of a federation on this machine: those the Federation names, else some made in this folder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.cli.state import Home, private_folder

if TYPE_CHECKING:
    from cluster_configs.load import Config


def folder(config: Config, home: Home) -> Path:
    """Where they lie."""
    named = config.federation.spec.pki
    return home.pki.resolve() if named is None else Path(named.folder)


def ensure(config: Config, home: Home) -> None:
    """Makes what is not there, and renews what ends soon, unless the Federation names a folder: then it is its owner's.

    Raises:
        Failed: when they cannot be made.
    """
    from serve_app.edge import pki

    federation = config.federation
    if federation.spec.pki is not None:
        return
    names = [r.name for r in federation.spec.regions]
    try:
        pki.ensure(private_folder(home.pki), federation.metadata.name, names, datetime.now(UTC))
    except pki.PkiError as error:
        raise Failed(str(error)) from None


def check_given(config: Config) -> None:
    """Machines that are not this one trust no certificates of this folder.

    Raises:
        Failed: with exit status 2.
    """
    if config.federation.spec.pki is None:
        raise Failed(
            "the Federation's addresses are of several machines, and it names no certificates; write "
            "pki: {folder: /ABSOLUTE/FOLDER} and make them with grix pki init",
            BAD_USAGE,
        )


def in_use(config: Config, home: Home) -> Config:
    """The configuration with the folder of certificates written out."""
    from cluster_configs.kind_federation import Pki

    spec = config.federation.spec.model_copy(update={"pki": Pki(folder=str(folder(config, home)))})
    return replace(config, federation=config.federation.model_copy(update={"spec": spec}))
