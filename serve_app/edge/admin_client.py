"""The coordinator's Admin service for the ``grix`` command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import grpc

from serve_app.core.reports import PROTOCOL
from serve_app.edge.grpc_tls import TlsError, TlsFolder
from serve_app.edge.identity import Identity
from serve_app.edge.protos import grix_pb2 as pb

#: Answers may have a status of hundreds of regions.
MOST_BYTES: Final = 64 * 1024 * 1024
LIMIT_S: Final = 10.0
_UNREACHABLE: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class AdminCallError(Exception):
    """A call that gave no answer, in words for an operator."""


class Unreachable(AdminCallError):
    """No coordinator answers there, or none that this certificate trusts."""


class NotAllowed(AdminCallError):
    """The coordinator does not take this certificate."""


class NotDone(AdminCallError):
    """The coordinator refuses what was asked. ``faults`` has every reason, one a line."""

    def __init__(self, error: str, faults: list[str]) -> None:
        super().__init__("\n".join((error, *faults)))
        self.error, self.faults = error, faults


class Admin:
    """Calls one coordinator with an operator's certificate. ``pki_folder`` holds its ca.pem, cert.pem and key.pem."""

    def __init__(self, address: str, pki_folder: Path, limit_s: float = LIMIT_S) -> None:
        self._address = address
        self._folder = pki_folder
        self._limit_s = limit_s

    def do(self, verb: str, **fields: Any) -> dict[str, Any]:
        """One verb with its fields; its answer.

        Raises:
            AdminCallError: :class:`Unreachable`, :class:`NotAllowed` or :class:`NotDone`.
        """
        return asyncio.run(self.ask(verb, **fields))

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """:meth:`do` for whoever has a loop."""
        try:
            tls = TlsFolder(self._folder)
        except TlsError as error:
            raise NotAllowed(f"no operator's certificate: {error}") from None
        whom = Identity(tls.identity.federation, "coordinator")
        request = pb.AdminRequest(protocol=PROTOCOL, verb=verb, json=json.dumps(fields))
        async with tls.channel(self._address, whom, MOST_BYTES) as channel:
            call = channel.unary_unary("/grix.v1.Admin/Do", pb.AdminRequest.SerializeToString, pb.AdminReply.FromString)
            try:
                reply = await call(request, timeout=self._limit_s)
            except grpc.aio.AioRpcError as error:
                raise self._said(error) from None
        answer: dict[str, Any] = json.loads(reply.json)
        if not reply.ok:
            raise NotDone(answer["error"], answer["faults"])
        return answer

    def _said(self, error: grpc.aio.AioRpcError) -> AdminCallError:
        what = f"coordinator {self._address}"
        if error.code() in _UNREACHABLE:
            return Unreachable(f"{what}: does not answer: {error.details()}")
        if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            return NotAllowed(f"{what}: refused: {error.details()}")
        return AdminCallError(f"{what}: {error.code().name}: {error.details()}")
