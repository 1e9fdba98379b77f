"""Documents that operators hand in, checked for this federation."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cluster_configs.bundle import Config
from cluster_configs.faults import ConfigError
from serve_app.core.fleet_events import Wanted
from serve_app.edge.fleet_documents import config_of
from serve_app.edge.wire_link import MOST_DOCUMENTS_BYTES

MOST_DOCUMENTS: Final = 5000


class AdminError(Exception):
    """What an operator asked for is not done. ``faults`` has every reason where there may be several."""

    def __init__(self, error: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(error)
        self.error, self.faults = error, faults


async def handed_in(documents: Any, federation: str) -> Config:
    """A whole set of documents of this federation.

    Raises:
        AdminError: for anything else.
    """
    if not isinstance(documents, list) or not all(isinstance(d, dict) for d in documents):
        raise AdminError("documents: is no list of objects; allowed: whole documents as JSON")
    if len(documents) > MOST_DOCUMENTS:
        raise AdminError(f"documents: {len(documents)} of them; at most {MOST_DOCUMENTS} are allowed")
    try:
        config = await asyncio.to_thread(config_of, documents)
    except ConfigError as error:
        raise AdminError("the documents have faults", tuple(map(str, error.faults))) from None
    name = config.federation.metadata.name
    if name != federation:
        said = f"Federation: metadata.name: is '{name}'; allowed: {federation}, whose certificates these are"
        raise AdminError("refused", (said,))
    return config


def check_size(wanted: Wanted) -> None:
    """Raises AdminError for documents that no plan can carry."""
    if len(wanted.documents.encode()) > MOST_DOCUMENTS_BYTES:
        said = f"documents: {len(wanted.documents)} characters; at most {MOST_DOCUMENTS_BYTES} bytes are allowed"
        raise AdminError("refused", (said,))
