"""The key that lets a GSLB off this machine see the deep health check: for Routers, not for every process of a region.

An environment goes to each child: engines, tasks, tools. So a region's processes get the name of a file, which its
Routers read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "GRIX_HEALTH_KEY"
FILE_VARIABLE: Final = "GRIX_HEALTH_KEY_FILE"


def hidden(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """``env`` with a key in it moved to a file in ``folder`` that only its owner may read."""
    key = env.get(VARIABLE, "").strip()
    kept = {name: value for name, value in env.items() if name != VARIABLE}
    if not key:
        return kept
    file = folder / "health_key"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(key)
    return kept | {FILE_VARIABLE: str(file)}


def health_key(env: Mapping[str, str]) -> str | None:
    """The key, ``None`` when there is none: then only loopback sees the deep check.

    Raises:
        OSError: when the file that is named cannot be read; a region must not come up with a key that does not work.
    """
    named = env.get(FILE_VARIABLE)
    key = Path(named).read_text(encoding="utf-8") if named else env.get(VARIABLE, "")
    return key.strip() or None
