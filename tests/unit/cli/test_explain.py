"""A decision as people read it."""

from __future__ import annotations

from serve_app.cli.explain import text_of


def test_what_was_not_run_is_called_so() -> None:
    told = {"request_id": "explain", "tenant": "local", "region": "cloud-a", "session_id": "s1"}
    assert text_of(told).splitlines()[0] == "request    not run  tenant local  region cloud-a  session s1"


def test_a_request_of_the_past_begins_with_its_id() -> None:
    told = {"request_id": "r-7", "tenant": "acme", "region": "cloud-a", "outcome": "success", "status": 200}
    lines = text_of(told).splitlines()
    assert lines[0] == "request    r-7  tenant acme  region cloud-a"
    assert "outcome    success, status 200, finish None, error None" in lines
