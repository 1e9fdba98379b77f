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
    assert Home(tmp_path / ".grix").read() == {"regions": [], "coordinator": None, "links": None}


def test_written_state_is_read_back_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    state = {**empty(), "regions": [{"name": "a", "pids": [1]}]}
    home.write(state)
    assert home.read() == state
    assert (_mode(home.root), _mode(home.state_file)) == (0o700, 0o600)
    assert [f.name for f in home.root.iterdir()] == ["state.json"]


def test_a_write_that_fails_leaves_the_old_state_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_forgetting_the_last_part_removes_the_folder_and_the_key(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    home.write({"regions": [{"name": "a"}, {"name": "b"}], "coordinator": {"name": "control"}, "links": {"ports": {}}})
    write_private(home.key_file, "k")
    write_private(home.pki / "ca" / "ca.pem", "c")
    write_private(home.store / "facts.json", "{}")
    for name in ("a", "b", "control"):
        write_private(home.region(name) / "ray_token", "t")
    home.forget("a")
    assert [r["name"] for r in home.read()["regions"]] == ["b"]
    assert not home.region("a").exists()
    home.forget("control")
    assert home.read()["coordinator"] is None and (home.store / "facts.json").is_file()
    home.forget("b")
    assert home.read() == {"regions": [], "coordinator": None, "links": {"ports": {}}}
    assert home.key_file.exists() and home.pki.exists()
    home.forget_links()
    assert not home.root.exists()


def test_what_is_remembered_replaces_what_was(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    for record in ({"name": "a", "pids": []}, {"name": "control"}, {"name": "b"}, {"name": "a", "pids": [7]}):
        home.remember(record)
    state = home.read()
    assert state["regions"] == [{"name": "b"}, {"name": "a", "pids": [7]}]
    assert state["coordinator"] == {"name": "control"}


def test_after_a_failure_only_logs_stay(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    home.write({**empty(), "regions": [{"name": "a"}]})
    write_private(home.key_file, "k")
    for name in ("ray_token", "desired/config.json", "ray.log", "failure.log"):
        write_private(home.region("a") / name, "x")
    home.forget("a", keep_log=True)
    assert sorted(f.name for f in home.region("a").iterdir()) == ["failure.log", "ray.log"]
    assert [f.name for f in home.root.iterdir()] == ["a"]


def test_tenant_holds_the_hash_never_the_key() -> None:
    document = tenant_document("grix-secret")
    digest = hashlib.sha256(b"grix-secret").hexdigest()
    assert document["spec"] == {
        "keys": [{"id": "local", "sha256": digest}],
        "residency": ["any"],
        "role": "operator",
    }
    assert "grix-secret" not in json.dumps(document)


def test_the_key_is_made_once_for_every_region(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    first = own_tenant(home)
    key = home.key_file.read_text().strip()
    assert key.startswith("grix-") and len(key) > 40
    assert own_tenant(home) == first == tenant_document(key)
    assert _mode(home.key_file) == 0o600
