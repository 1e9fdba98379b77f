"""The entry in its other shapes: TLS at Serve's proxy, and HAProxy where nobody else can reach it."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from serve_app.cli.client import Client
from serve_app.cli.say import Failed
from tests.e2e.test_security_listeners import documented
from tests.stub_region import running_stub_region


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own for loopback, and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return files


def test_the_entry_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "grix")
    other, _ = certificate(tmp_path, "other")
    with running_stub_region(f"{{tls: {{certFile: {cert}, keyFile: {key}}}}}") as region:
        assert region.url.startswith("https://")
        reply = Client(region.url, region.key, certificate=str(cert)).ask("GET", "/v1/models")
        assert (reply.status, reply.body["data"][0]["id"]) == (200, "auto")
        with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
            Client(region.url, region.key, certificate=str(other)).ask("GET", "/v1/models")
        plain = http.client.HTTPConnection("127.0.0.1", int(region.url.rpartition(":")[2]), timeout=10)
        with pytest.raises((OSError, http.client.HTTPException)):
            plain.request("GET", "/healthz")
            plain.getresponse()


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own needs root")
def test_fast_serves_streams_and_trusts_no_address() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fast_drill"], cwd=root, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    listeners = told.pop("listeners")
    assert listeners == {kind: [documented()[kind]] for kind in listeners}
    only_here = {"fallback-proxy", "direct-ingress", "replica-http", "haproxy-metrics", "haproxy-stats", "haproxy-log"}
    assert only_here | {"entry", "gcs"} <= listeners.keys()
    assert told == {
        "own_network": True,
        "only_loopback": True,
        "proxies": "HeadOnly",
        "statuses": [200],
        "texts": ["one two"],
        "unbuffered": True,
        "broken": [200, True, True],
        "/healthz": [200, 200],
        "/metrics": [401, 200],
        "/healthz?deep=1": [401, 200],
        "/v1/models": [401, 200],
        "admin": ["0o700", 1],
    }
