"""Schemathesis reads the served OpenAPI document, then asks the real region what it says may be asked, and what not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from serve_app.openapi import document
from tests.e2e.conftest import LiveRegion

ROOT = Path(__file__).resolve().parents[2]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "negative_data_rejection",
)


def test_the_document_is_served(region: LiveRegion) -> None:
    status, headers, told = region.ask("GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert told == json.loads(json.dumps(document()))
    assert region.ask("GET", "/openapi.json", None, {"authorization": ""})[0] == 401


def test_schemathesis_finds_no_fault(region: LiveRegion, tmp_path: Path) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{region.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {region.key}", "--checks", ",".join(CHECKS)),
        *("--phases", "coverage,fuzzing", "--max-examples", "10", "--seed", "7", "--continue-on-failure"),
        *("--generation-database", "none", "--suppress-health-check", "all", "--request-timeout", "30"),
        *("--warnings", "off", "--no-color"),
    ]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.e2e.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **hooks}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    # The key stands in the command: what is told is Schemathesis's own output, which hides it.
    assert done.returncode == 0, done.stdout[-6000:]
    assert region.ask("GET", "/healthz?deep=1")[0] == 200
