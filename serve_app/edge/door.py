"""Who may call a gRPC server of a federation, by the certificate that the connection was made with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from cryptography import x509

from serve_app.edge.grpc_tls import day
from serve_app.edge.identity import Identity
from serve_app.edge.pki import identity_in

log = logging.getLogger("ray.serve")

#: The same refusal is logged again after this long: who is refused comes back each second.
REFUSED_AGAIN_S: Final = 30.0
_MOST_TOLD: Final = 1000


class Refused(Exception):
    """A caller that may not call. ``who`` is its identity as far as it is known."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who}: {why}")
        self.who, self.why = who, why


@lru_cache(maxsize=1024)
def _stated(pem: bytes) -> tuple[Identity | None, float, str]:
    """A caller's identity, the end of its certificate, and how to call it where it has no identity."""
    cert = x509.load_pem_x509_certificate(pem)
    return identity_in(cert), cert.not_valid_after_utc.timestamp(), ascii(cert.subject.rfc4514_string()[:200])


class Door:
    """Who may call this server. Every refusal is logged, with who and why, and none with a secret."""

    def __init__(
        self,
        federation: str,
        parts: Sequence[str],
        unix_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._federation = federation
        self._parts = parts
        self._unix_s, self._now_s = unix_s, now_s
        self._told: dict[tuple[str, str], float] = {}

    def caller(self, context: Any) -> Identity:
        """The caller's identity: a part of this federation that may call, with a certificate that has not ended.

        Raises:
            Refused: anybody else.
        """
        pems = context.auth_context().get("x509_pem_cert", ())
        if not pems:
            raise self.refused(context, "somebody", "shows no certificate")
        identity, ends_unix_s, subject = _stated(pems[0])
        if identity is None:
            raise self.refused(context, subject, "states no identity of a federation")
        if identity.federation != self._federation:
            raise self.refused(context, identity.uri, f"belongs to another federation than {self._federation}")
        if identity.part not in self._parts:
            raise self.refused(context, identity.uri, f"may not call this; allowed: {', '.join(self._parts)}")
        if self._unix_s() > ends_unix_s:
            raise self.refused(context, identity.uri, f"has a certificate that ended on {day(ends_unix_s)}")
        return identity

    def refused(self, context: Any, who: str, why: str) -> Refused:
        """A refusal to raise, after it was logged."""
        now_s, key = self._now_s(), (who, why)
        if now_s - self._told.get(key, float("-inf")) >= REFUSED_AGAIN_S:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told[key] = now_s
            log.warning("refused %s at %s: %s", who, context.peer(), why)
        return Refused(who, why)
