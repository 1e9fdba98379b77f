"""``grix key new``: what is shown is a key that its line lets in."""

from __future__ import annotations

from datetime import date

import pytest
import yaml

from cluster_configs.schema import Tenant
from serve_app.cli import key, main
from serve_app.cli.say import Failed
from serve_app.core.tenants import hash_key

TODAY = date(2026, 11, 30)


@pytest.mark.parametrize("expires", [None, "2026-11-30", "2027-06-30"])
def test_the_line_is_one_of_a_tenant_document(expires: str | None) -> None:
    made = key.new("acme", expires, TODAY)
    (entry,) = yaml.safe_load(made["yaml"])
    document = {"kind": "Tenant", "metadata": {"name": "acme"}, "spec": {"keys": [entry], "residency": ["any"]}}
    (kept,) = Tenant.model_validate(document).spec.keys
    assert (kept.sha256, kept.id) == (hash_key(made["key"]), made["id"])
    assert (kept.expires and kept.expires.isoformat()) == expires
    assert made["key"] not in made["yaml"]


def test_no_key_is_made_twice() -> None:
    assert len({key.new("acme", None, TODAY)["key"] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("tenant", "expires"),
    [("Acme", None), ("a--b", None), ("", None), ("x" * 41, None), ("acme", "2026-11-29"), ("acme", "soon"),
     ("acme", "20270630")],
)  # fmt: skip
def test_what_a_document_would_refuse_is_refused(tenant: str, expires: str | None) -> None:
    with pytest.raises(Failed) as caught:
        key.new(tenant, expires, TODAY)
    assert caught.value.code == 2


def test_the_command_shows_the_key_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["key", "new", "acme"]) == 0
    said = capsys.readouterr().out
    shown = said.splitlines()[0]
    assert shown.startswith("grix-") and said.count(shown) == 1 and hash_key(shown) in said
