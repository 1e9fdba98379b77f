"""Files of a process that nobody else may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Writes a file (0600) in one step: who reads it has the old text or the new one."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
