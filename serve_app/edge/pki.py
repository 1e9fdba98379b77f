"""The certificates of a federation: one authority, and short-lived ones for regions, the coordinator and operators.

Below one folder: ``ca`` with the authority's certificate and key, and for each identity its own (``region/cloud-a``,
``coordinator``, ``operator/admin``) with ``ca.pem``, ``cert.pem`` and ``key.pem``. Only the machine that makes
certificates has ``ca``; other machines have the folders of the identities that run there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from serve_app.edge.identity import Identity, identity_of

LEAF_DAYS: Final = 7
AUTHORITY_DAYS: Final = 3650
#: Certificates are valid from this long before they were made: clocks of machines disagree.
CLOCKS_APART: Final = timedelta(hours=2)
#: The operator that every federation has.
OPERATOR: Final = "admin"
#: A certificate with less than this share of its life left is renewed by :func:`ensure`.
RENEW_BELOW_RATIO: Final = 0.5
FILES: Final = ("ca.pem", "cert.pem", "key.pem")
_CURRENT: Final = "current"


class PkiError(Exception):
    """What keeps certificates from being made or read, with the file."""


@dataclass(frozen=True, slots=True)
class Certified:
    """One identity's certificate as it lies in its folder."""

    identity: Identity
    folder: Path
    not_before: datetime
    not_after: datetime
    done: Literal["made", "kept", "renewed", "shown"]

    def left(self, now: datetime) -> timedelta:
        return self.not_after - now


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs. ``pem`` may hold several certificates, of which ``cert`` is the key's."""

    federation: str
    pem: bytes
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def init(
    root: Path,
    federation: str,
    regions: Iterable[str],
    now: datetime,
    *,
    operator: str = OPERATOR,
    days: float = LEAF_DAYS,
    force: bool = False,
) -> list[Certified]:
    """Makes the authority and every certificate that is not there; with ``force`` all anew.

    Raises:
        PkiError: for an authority of another federation, or one whose key is not here.
    """
    root.mkdir(0o700, parents=True, exist_ok=True)
    if force or not (root / "ca" / "ca.pem").exists():
        _make_authority(root, federation, now)
        force = True
    authority = read_authority(root)
    if authority.federation != federation:
        raise PkiError(f"{root / 'ca'}: this is the authority of {authority.federation}, not of {federation}")
    wanted = [Identity(federation, "coordinator"), *(Identity(federation, "region", name) for name in regions)]
    made = []
    for identity in [*wanted, Identity(federation, "operator", operator)]:
        folder = root / identity.path
        there = None if force or not (folder / "cert.pem").exists() else read(folder)
        made.append(issue(root, authority, identity, now, days) if there is None else replace(there, done="kept"))
    return made


def renew(root: Path, now: datetime, *, days: float = LEAF_DAYS, below_ratio: float = 1.0) -> list[Certified]:
    """New keys and certificates for identities whose share of life left is below ``below_ratio``; the rest is kept.

    Raises:
        PkiError: when the authority's key is not here.
    """
    authority = read_authority(root)
    out = []
    for old in found(root):
        due = old.left(now) < (old.not_after - old.not_before) * below_ratio
        new = issue(root, authority, old.identity, now, days) if due else old
        out.append(replace(new, done="renewed" if due else "kept"))
    return out


def ensure(root: Path, federation: str, regions: Iterable[str], now: datetime) -> list[Certified]:
    """What a federation on one machine needs before it starts: all there, and none that ends soon.

    Raises:
        PkiError: as :func:`init`.
    """
    made = {c.identity for c in init(root, federation, regions, now) if c.done == "made"}
    renewed = renew(root, now, below_ratio=RENEW_BELOW_RATIO)
    return [replace(c, done="made") if c.identity in made else c for c in renewed]


def found(root: Path) -> Iterator[Certified]:
    """The certificates below a folder.

    Raises:
        PkiError: for a folder that cannot be read.
    """
    for folder in (root / "coordinator", *sorted(root.glob("region/*")), *sorted(root.glob("operator/*"))):
        if (folder / "cert.pem").exists():
            yield read(folder)


def read(folder: Path) -> Certified:
    """The certificate in an identity's folder.

    Raises:
        PkiError: when it cannot be read or is none of ours.
    """
    file = folder / "cert.pem"
    cert = certificate_of(file)
    identity = identity_in(cert)
    if identity is None:
        raise PkiError(f"{file}: has no URI such as grix://FEDERATION/region/NAME")
    return Certified(identity, folder, cert.not_valid_before_utc, cert.not_valid_after_utc, "shown")


def certificate_of(file: Path) -> x509.Certificate:
    """The first certificate of a file in PEM.

    Raises:
        PkiError: when there is none.
    """
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise PkiError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise PkiError(f"{file}: holds no certificate in PEM") from None


def identity_in(cert: x509.Certificate) -> Identity | None:
    """The one identity a certificate states; ``None`` for none, and for several."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return identity_of(uris[0]) if len(uris) == 1 else None


def read_authority(root: Path) -> Authority:
    """The authority with its key.

    Raises:
        PkiError: when either is missing or they do not belong together.
    """
    folder = root / "ca"
    try:
        pem, key_pem = (folder / "ca.pem").read_bytes(), (folder / "key.pem").read_bytes()
        certs = x509.load_pem_x509_certificates(pem)
        key = serialization.load_pem_private_key(key_pem, None)
    except OSError as error:
        said = "certificates are made where the authority's key lies"
        raise PkiError(f"{error.filename}: cannot be read: {error.strerror}; {said}") from None
    except (ValueError, TypeError):
        raise PkiError(f"{folder}: ca.pem or key.pem is no certificate or key in PEM") from None
    cert = next((c for c in certs if c.public_key() == key.public_key()), None)
    if cert is None or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{folder}: key.pem is not the key of ca.pem")
    unit = cert.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return Authority(str(unit[0].value) if unit else "", pem, cert, key)


def issue(root: Path, authority: Authority, identity: Identity, now: datetime, days: float) -> Certified:
    """A new key and certificate in the identity's folder, both at once for whoever reads them."""
    key = ec.generate_private_key(ec.SECP256R1())
    serves = identity.part != "operator"
    dials = identity.part != "coordinator"
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] * serves + [ExtendedKeyUsageOID.CLIENT_AUTH] * dials
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.dns)]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(identity.path))])
    begin, end = now - CLOCKS_APART, now + timedelta(days=days)
    cert = (
        _builder(name, authority.cert.subject, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    folder = root / identity.path
    pem = cert.public_bytes(serialization.Encoding.PEM)
    _write_together(folder, dict(zip(FILES, (authority.pem, pem, _key_pem(key)), strict=True)))
    return Certified(identity, folder, cert.not_valid_before_utc, cert.not_valid_after_utc, "made")


def _make_authority(root: Path, federation: str, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, federation)
    # A second authority of a federation is told apart from the first by more than its key.
    label = x509.NameAttribute(NameOID.COMMON_NAME, f"grix authority {now.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    name = x509.Name([unit, label])
    cert = (
        _builder(name, name, key.public_key(), now - CLOCKS_APART, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = root / "ca"
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _write(folder / "key.pem", _key_pem(key))
    _write(folder / "ca.pem", cert.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(file: Path, data: bytes) -> None:
    """For its owner only from the first moment, and whole or not at all."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)


def _link(link: Path, to: str) -> None:
    part = link.with_name(f".{link.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    part.symlink_to(to)
    part.replace(link)


def _write_together(folder: Path, files: dict[str, bytes]) -> None:
    """All files of a folder change in one moment: they are links through ``current``, a link to one version of them.

    The version before stays, for who has begun to read it.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    current = folder / _CURRENT
    version = folder / f".version-{os.urandom(4).hex()}"
    version.mkdir(0o700)
    for name, data in files.items():
        _write(version / name, data)
    kept = {version.name, os.readlink(current) if current.is_symlink() else ""}
    _link(current, version.name)
    for name in files:
        _link(folder / name, f"{_CURRENT}/{name}")
    for old in folder.glob(".version-*"):
        if old.name not in kept:
            shutil.rmtree(old, ignore_errors=True)
