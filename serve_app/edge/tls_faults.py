"""Why a connection between two parts does not come about, in words: gRPC says only that it does not."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Final

from cryptography import x509

from serve_app.edge.grpc_tls import TlsFolder, day
from serve_app.edge.identity import Identity
from serve_app.edge.pki import identity_in

#: Of each of the few steps.
STEP_LIMIT_S: Final = 1.0


async def fault_of(address: str, whom: Identity, tls: TlsFolder) -> str:
    """What is wrong with a connection to ``whom`` at ``address``, tried anew; empty when it comes about.

    Takes at most a few :data:`STEP_LIMIT_S` and never raises.
    """
    try:
        heard = await _try(address, whom, _context(tls, verify=True))
    except ssl.SSLCertVerificationError as error:
        shown = await _shown(address, whom, tls)
        return f"refused {shown} at {address}, dialled as {whom}: {error.verify_message}"
    except ssl.SSLError as error:
        reason = (error.reason or "unknown").lower().replace("_", " ")
        return f"{whom} at {address} ends the handshake: {reason}; {_ours(tls)}"
    except TimeoutError:
        return f"{whom} at {address} does not answer within {STEP_LIMIT_S:g} s"
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else type(error).__name__
        return f"{whom} at {address} cannot be reached: {said}"
    return "" if heard else f"{whom} at {address} hangs up; {_ours(tls)}"


def _ours(tls: TlsFolder) -> str:
    """The likely reason: what it saw of ours, as it does not say."""
    pair = tls.pair()
    return f"it saw the certificate of {pair.identity}, valid until {day(pair.ends_unix_s)}"


def _context(tls: TlsFolder, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.folder / "ca.pem"))
    context.load_cert_chain(tls.folder / "cert.pem", tls.folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _try(address: str, whom: Identity, context: ssl.SSLContext) -> bool:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(STEP_LIMIT_S):
        reader, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), ssl=context, server_hostname=whom.dns
        )
    try:
        # In TLS 1.3 the server's word about our certificate comes after the handshake, before its first frame.
        async with asyncio.timeout(STEP_LIMIT_S):
            return bool(await reader.read(1))
    finally:
        writer.transport.abort()


async def _shown(address: str, whom: Identity, tls: TlsFolder) -> str:
    """The identity and the end of the certificate that is shown at ``address``, believed or not."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(STEP_LIMIT_S):
            _, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=_context(tls, verify=False), server_hostname=whom.dns
            )
        raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        cert = x509.load_der_x509_certificate(raw)
    except (OSError, ValueError, TypeError):
        return "somebody"
    name = identity_in(cert) or ascii(cert.subject.rfc4514_string()[:200])
    return f"{name} (certificate of {cert.issuer.rfc4514_string()[:200]!a}, until {cert.not_valid_after_utc:%F %TZ})"
