"""The state file: whole or not at all, private, and gone when nothing is up."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from serve_app.cli import state as state_module
from serve_app.cli.say import Failed
from serve_app.cli.state import Home, empty, own_tenant, tenant_document, write_private


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_up_is_no_region(tmp_path: Path) -> None:
    assert Home(tmp_path / ".grix").read() == {"regions": [], "coordinator": None}


def test_written_state_is_read_back_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    state = {**empty(), "regions": [{"name": "a", "pids": [1]}]}
    home.write(state)
    assert home.read() == state
    assert (_mode(home.root), _mode(home.state_file)) == (0o700, 0o600)
    assert [f.name for f in home.root.iterdir()] == ["state.json"]


def test_a_write_that_fails_leaves_the_old_state_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / ".grix")
    home.write(empty())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_module.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        home.write({**empty(), "regions": [{"name": "a"}]})
    assert home.read() == empty()
    assert [f.name for f in home.root.iterdir()] == ["state.json"]


def test_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "x" / "secret", "s")
    finally:
        os.umask(before)
    assert (_mode(tmp_path / "x"), _mode(tmp_path / "x" / "secret")) == (0o700, 0o600)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"regions": 1}'])
def test_a_broken_state_is_a_clear_fault(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    home.state_file.write_text(text)
    with pytest.raises(Failed, match=r"state\.json"):
        home.read()


def test_forgetting_the_last_region_removes_the_folder(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    home.write({**empty(), "regions": [{"name": "a"}, {"name": "b"}]})
    write_private(home.key_file("a"), "k")
    home.forget("a")
    assert [r["name"] for r in home.read()["regions"]] == ["b"]
    assert not home.region("a").exists()
    home.forget("b")
    assert not home.root.exists()


def test_after_a_failure_only_logs_stay(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    home.write({**empty(), "regions": [{"name": "a"}]})
    for name in ("api_key", "ray_token", "tenant.yaml", "ray.log", "failure.log"):
        write_private(home.region("a") / name, "x")
    home.forget("a", keep_log=True)
    assert sorted(f.name for f in home.region("a").iterdir()) == ["failure.log", "ray.log"]
    assert not home.state_file.exists()


def test_tenant_holds_the_hash_never_the_key() -> None:
    document = tenant_document("grix-secret")
    digest = hashlib.sha256(b"grix-secret").hexdigest()
    assert document["spec"] == {
        "keys": [{"id": "local", "sha256": digest}],
        "residency": ["any"],
        "role": "operator",
    }
    assert "grix-secret" not in json.dumps(document)


def test_the_key_is_made_once(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    first = own_tenant(home, "a")
    key = home.key_file("a").read_text().strip()
    assert key.startswith("grix-") and len(key) > 40
    assert own_tenant(home, "a") == first == tenant_document(key)
    assert _mode(home.key_file("a")) == 0o600
