"""Doors of a region: who may ask what, and from where it can be reached at all."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.e2e.conftest import LiveRegion, of_this_region
from tests.e2e.test_region import connections, is_loopback


@pytest.mark.parametrize("method,path", [("GET", "/grix/requests/x"), ("POST", "/grix/explain"), ("GET", "/v1/models")])
def test_what_is_told_needs_a_key(region: LiveRegion, method: str, path: str) -> None:
    body = None if method == "GET" else b"{}"
    for key in ("", "grix-nobody-has-this-key"):
        status, _, told = region.ask(method, path, body, {"authorization": f"Bearer {key}"})
        assert (status, told["error"]["type"]) == (401, "authentication_error")


def test_a_stranger_is_refused_before_the_body_is_read(region: LiveRegion) -> None:
    status, _, told = region.ask("POST", "/v1/chat/completions", b"{", {"authorization": "Bearer grix-wrong"})
    assert (status, told["error"]["code"]) == (401, "invalid_api_key")


def test_a_refusal_does_not_repeat_the_key(region: LiveRegion) -> None:
    status, headers, told = region.ask("GET", "/v1/models", None, {"authorization": "Bearer grix-secret-guess"})
    assert status == 401 and "secret-guess" not in f"{headers}{told}"


def test_the_entry_the_dashboard_and_the_cluster_are_on_loopback(region: LiveRegion) -> None:
    ports = {urlsplit(region.url).port, urlsplit(region.record["dashboard"]).port}
    ports.add(int(region.record["gcs"].rpartition(":")[2]))
    bound: dict[int | None, set[str]] = {port: set() for port in ports}
    for process in of_this_region(region.record["temp_dir"]):
        for connection in connections(process):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
                bound[connection.laddr.port].add(connection.laddr.ip)
    assert all(bound.values()), bound
    assert all(is_loopback(ip) for ips in bound.values() for ip in ips), bound


def test_the_dashboard_takes_the_token_and_no_other(region: LiveRegion) -> None:
    token = Path(region.record["token_file"]).read_text().strip()
    url = region.record["dashboard"] + "/api/serve/applications/"

    def status(given: str) -> int:
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {given}"})
        try:
            return int(urllib.request.urlopen(request, timeout=10).status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status(token) == 200
    # Ray's word for a token that is wrong; 401 is for none.
    assert status("0" * len(token)) == 403
    assert status(region.key) == 403


def test_no_secret_stands_in_a_command_line(region: LiveRegion) -> None:
    token = Path(region.record["token_file"]).read_text().strip()
    for process in of_this_region(region.record["temp_dir"]):
        words = " ".join(process.cmdline())
        assert region.key not in words and token not in words
