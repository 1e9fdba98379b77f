"""What a request's headers may be, for the guard before Serve's HTTP code and for a Router, which may have no guard."""

from __future__ import annotations

import re
from typing import Final

#: Ids that can stand in a log and in a path.
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
REQUEST_ID_SAID: Final = "allowed are 1 to 128 letters, digits and . _ : -"
TWICE_SAID: Final = "is sent more than once."
_DECIDES: Final = frozenset(
    {
        *("authorization", "host", "content-type", "content-encoding", "traceparent", "x-request-id"),
        *("x-session-id", "x-user-id", "x-route-hint", "x-task-type", "x-data-class", "x-language"),
    }
)


def is_request_id(text: str) -> bool:
    """Whether a caller may name a request so."""
    return _REQUEST_ID.fullmatch(text) is not None


def is_once(name: str) -> bool:
    """Whether a header, by its lower-case name, decides something: two readers of two such could take different ones.

    Others may come twice: each proxy on the way adds its own ``x-forwarded-proto``.
    """
    return name in _DECIDES or name.startswith("x-grix-")
