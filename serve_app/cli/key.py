"""``grix key``: a new API key, shown once; what is kept of it is a line for a Tenant document."""

from __future__ import annotations

import re
import secrets
from datetime import date
from typing import Any, Final

from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.core.tenants import hash_key

_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)


def new(tenant: str, expires: str | None, today: date) -> dict[str, Any]:
    """A key, its id and the line under ``keys:``. The key itself is written nowhere.

    Raises:
        Failed: with exit status 2, for a name or a day that a Tenant document would refuse.
    """
    if len(tenant) > 40 or _NAME.fullmatch(tenant) is None:
        said = "allowed are small letters, digits and single dashes, at most 40"
        raise Failed(f"TENANT '{tenant[:60]}': {said}", BAD_USAGE)
    if expires is not None:
        try:
            if date.fromisoformat(expires) < today or len(expires) != 10:
                raise ValueError
        except ValueError:
            said = "allowed is a day from today on, as 2027-06-30"
            raise Failed(f"--expires {expires[:60]}: {said}", BAD_USAGE) from None
    key = f"grix-{secrets.token_urlsafe(32)}"
    key_id = f"k-{today:%Y%m%d}-{secrets.token_hex(2)}"
    until = f", expires: {expires}" if expires else ""
    line = f"- {{id: {key_id}, sha256: {hash_key(key)}{until}}}"
    return {"tenant": tenant, "key": key, "id": key_id, "sha256": hash_key(key), "expires": expires, "yaml": line}


def text_of(made: dict[str, Any]) -> str:
    """For a person: the key, and where its line goes."""
    return (
        f"{made['key']}\n\n"
        f"This is the only time the key is shown. Under spec.keys of tenant {made['tenant']}, beside the old key until "
        f"nobody uses that one:\n\n    {made['yaml']}"
    )
