"""Certificates: who is in them, how long, that nothing is overwritten, and that no reader ever sees half of a pair."""

from __future__ import annotations

import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from serve_app.edge import pki
from serve_app.edge.grpc_tls import TlsError, read_pair
from serve_app.edge.identity import Identity, identity_of

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def _init(root: Path, regions: tuple[str, ...] = ("cloud-a",), now: datetime = NOW, **how: object) -> dict[str, str]:
    made = pki.init(root, "demo", regions, now, **how)  # type: ignore[arg-type]
    return {str(c.identity): c.done for c in made}


def test_everybody_gets_an_identity_a_name_and_seven_days(tmp_path: Path) -> None:
    assert _init(tmp_path) == {
        "grix://demo/coordinator": "made",
        "grix://demo/region/cloud-a": "made",
        "grix://demo/operator/admin": "made",
    }
    cert = pki.certificate_of(tmp_path / "region/cloud-a/cert.pem")
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["grix://demo/region/cloud-a"]
    assert names.get_values_for_type(x509.DNSName) == ["cloud-a.region.demo.grix"]
    assert (cert.not_valid_before_utc, cert.not_valid_after_utc) == (NOW - timedelta(hours=2), NOW + timedelta(days=7))
    authority = pki.certificate_of(tmp_path / "ca/ca.pem")
    assert authority.not_valid_after_utc == NOW + timedelta(days=3650)
    cert.verify_directly_issued_by(authority)


@pytest.mark.parametrize(
    ("path", "usages"),
    [
        ("coordinator", {ExtendedKeyUsageOID.SERVER_AUTH}),
        ("region/cloud-a", {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}),
        ("operator/admin", {ExtendedKeyUsageOID.CLIENT_AUTH}),
    ],
)
def test_a_certificate_is_good_for_its_duty_only(tmp_path: Path, path: str, usages: set[x509.ObjectIdentifier]) -> None:
    _init(tmp_path)
    cert = pki.certificate_of(tmp_path / path / "cert.pem")
    assert set(cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    _init(tmp_path / "pki")
    for path in (tmp_path / "pki").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.is_file() else 0o700) or (path.is_dir() and path.name in ("region", "operator"))
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


def test_what_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    _init(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.pem")}
    assert _init(tmp_path, ("cloud-a", "cloud-b"), NOW + timedelta(days=1)) == {
        "grix://demo/coordinator": "kept",
        "grix://demo/region/cloud-a": "kept",
        "grix://demo/region/cloud-b": "made",
        "grix://demo/operator/admin": "kept",
    }
    assert {p: p.read_bytes() for p in before} == before
    assert set(_init(tmp_path, force=True).values()) == {"made"}
    assert (tmp_path / "ca/key.pem").read_bytes() != before[tmp_path / "ca/key.pem"]


def test_the_authority_of_another_federation_signs_nothing(tmp_path: Path) -> None:
    _init(tmp_path)
    with pytest.raises(pki.PkiError, match=r"ca: this is the authority of demo, not of other$"):
        pki.init(tmp_path, "other", (), NOW)


def test_without_the_authoritys_key_nothing_is_made(tmp_path: Path) -> None:
    _init(tmp_path)
    (tmp_path / "ca/key.pem").unlink()
    with pytest.raises(pki.PkiError, match=r"ca/key\.pem: cannot be read: No such file or directory; certificates are"):
        pki.renew(tmp_path, NOW)


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    _init(tmp_path / "one")
    _init(tmp_path / "two")
    (tmp_path / "one/ca/key.pem").write_bytes((tmp_path / "two/ca/key.pem").read_bytes())
    with pytest.raises(pki.PkiError, match=r"ca: key\.pem is not the key of ca\.pem$"):
        pki.read_authority(tmp_path / "one")


def test_only_what_ends_soon_is_renewed_where_a_federation_starts(tmp_path: Path) -> None:
    def ensured(days: float) -> set[str]:
        return {c.done for c in pki.ensure(tmp_path, "demo", ("cloud-a",), NOW + timedelta(days=days))}

    assert ensured(0) == {"made"}
    assert ensured(3) == {"kept"}
    assert ensured(4) == {"renewed"}
    assert ensured(5) == {"kept"}
    _init(tmp_path, ("cloud-a", "cloud-b"), NOW + timedelta(days=5))
    assert ensured(10) == {"renewed"}


def test_a_renewed_certificate_has_a_new_key_and_the_same_authority(tmp_path: Path) -> None:
    _init(tmp_path)
    folder = tmp_path / "region/cloud-a"
    before = read_pair(folder)
    pki.renew(tmp_path, NOW)
    renewed = pki.renew(tmp_path, NOW + timedelta(days=1), days=2)
    assert {c.done for c in renewed} == {"renewed"} and renewed[1].left(NOW) == timedelta(days=3)
    after = read_pair(folder)
    assert (after.ca, after.identity) == (before.ca, before.identity)
    assert after.key != before.key and after.cert != before.cert
    assert len(list(folder.glob(".version-*"))) == 2


def test_who_reads_during_renewals_sees_whole_pairs(tmp_path: Path) -> None:
    _init(tmp_path)
    authority, who = pki.read_authority(tmp_path), Identity("demo", "region", "cloud-a")
    folder, torn, keys, done = tmp_path / who.path, [], set(), threading.Event()

    def read_on() -> None:
        # Without a rest it would take most of the time of who writes.
        while not done.wait(0.0005):
            try:
                keys.add(read_pair(folder).key)
            except TlsError as error:
                torn.append(str(error))

    reader = threading.Thread(target=read_on)
    reader.start()
    for _ in range(30):
        pki.issue(tmp_path, authority, who, NOW, 7)
    done.set()
    reader.join()
    assert torn == [] and len(keys) > 1


@pytest.mark.parametrize(
    "uri",
    [
        "grix://demo/region/",
        "grix://demo/region/a/b",
        "grix://demo/region/A",
        "grix://demo/coordinator/x",
        "grix:///region/a",
        "https://demo/region/a",
        "grix://demo/region/a\n",
        "grix://demo/tenant/a",
        "grix://demo/region/..",
    ],
)
def test_what_is_no_identity_is_none(uri: str) -> None:
    assert identity_of(uri) is None


@pytest.mark.parametrize(
    "who", [Identity("f", "coordinator"), Identity("f", "region", "a-1"), Identity("f", "operator", "x")]
)
def test_an_identity_is_what_its_uri_says(who: Identity) -> None:
    assert identity_of(who.uri) == who
