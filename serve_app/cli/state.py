"""What is up, in ``.grix/state.json`` of the current folder, and the files of each region beside it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serve_app.cli.say import Failed

TENANT: Final = "local"
#: The control cluster's name in folders and messages.
CONTROL: Final = "control"
#: Names that this folder has for itself, so no region may have them.
RESERVED: Final = (CONTROL, "pki", "store")


@dataclass(frozen=True, slots=True)
class Home:
    """The folder ``.grix`` (0700) below the folder the command runs in."""

    root: Path

    @classmethod
    def here(cls) -> Home:
        return cls(Path.cwd() / ".grix")

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    def region(self, name: str) -> Path:
        return self.root / name

    @property
    def tenant_file(self) -> Path:
        return self.root / "tenant.yaml"

    @property
    def key_file(self) -> Path:
        return self.root / "api_key"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    def read(self) -> dict[str, Any]:
        """The state; nothing up is an empty list of regions.

        Raises:
            Failed: when the file is no state of ours.
        """
        try:
            state = json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return empty()
        except (OSError, ValueError) as error:
            raise Failed(f"{self.state_file}: cannot be read: {error}") from None
        if not isinstance(state, dict) or not isinstance(state.get("regions"), list):
            raise Failed(f"{self.state_file}: is not a state of grix; allowed: an object with the list 'regions'")
        return {**empty(), **state}

    def write(self, state: dict[str, Any]) -> None:
        """Replaces the state whole: a reader sees the old one or the new one."""
        write_private(self.state_file, json.dumps(state, indent=2) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Every cluster that the state has, the coordinator's last: it outlives those whose end it notes."""
        state = self.read()
        return [*state["regions"], *([state["coordinator"]] if state["coordinator"] else [])]

    def remember(self, record: dict[str, Any]) -> None:
        """Puts the record of a region, or of the control cluster, in the place of an older one."""
        state = self.read()
        if record["name"] == CONTROL:
            self.write({**state, "coordinator": record})
            return
        others = [r for r in state["regions"] if r["name"] != record["name"]]
        self.write({**state, "regions": [*others, record]})

    @property
    def store(self) -> Path:
        """What the coordinator must not forget: it outlives its cluster, and goes with the last thing that is up."""
        return self.root / "store"

    def forget(self, name: str, *, keep_log: bool = False) -> None:
        """Removes a region, or the control cluster, from the state, and its files."""
        state = self.read()
        if name == CONTROL:
            state["coordinator"] = None
        state["regions"] = [r for r in state["regions"] if r["name"] != name]
        self._write_or_remove(state)
        folder = self.region(name)
        if keep_log and folder.is_dir():
            for file in folder.iterdir():
                if file.is_dir():
                    shutil.rmtree(file, ignore_errors=True)
                elif file.suffix != ".log":
                    file.unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self.tidy()

    def forget_links(self) -> None:
        """Removes the relay between regions from the state, and the certificates that were made for it."""
        state = {**self.read(), "links": None}
        shutil.rmtree(self.pki, ignore_errors=True)
        (self.root / "relay.log").unlink(missing_ok=True)
        self._write_or_remove(state)
        self.tidy()

    def _write_or_remove(self, state: dict[str, Any]) -> None:
        """The operator's key goes with the last thing that takes it."""
        if state["regions"] or state["coordinator"] or state["links"]:
            self.write(state)
            return
        shutil.rmtree(self.store, ignore_errors=True)
        for file in (self.state_file, self.key_file, self.tenant_file):
            file.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Removes the folder when nothing but the lock of ``grix up`` is in it."""
        if self.root.is_dir() and not any(f.name != "up.lock" for f in self.root.iterdir()):
            shutil.rmtree(self.root, ignore_errors=True)


def empty() -> dict[str, Any]:
    """The state when nothing is up."""
    return {"regions": [], "coordinator": None, "links": None}


def private_folder(path: Path) -> Path:
    """The folder, made or made private: 0700."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Writes a file (0600) in one step, in a folder (0700) of ours."""
    private_folder(path.parent)
    write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Writes a file (0600) in one step."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def tenant_document(key: str) -> dict[str, Any]:
    """The tenant of whoever runs ``grix`` on this machine: an operator whose data may be anywhere."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {
        "apiVersion": "grix.io/v1",
        "kind": "Tenant",
        "metadata": {"name": TENANT},
        "spec": {"keys": [{"id": "local", "sha256": digest}], "residency": ["any"], "role": "operator"},
    }


def own_tenant(home: Home) -> dict[str, Any]:
    """The local tenant, the same at every region; its key is made once and kept in ``api_key`` until ``grix down``."""
    import yaml

    file = home.key_file
    private_folder(home.root)
    if not file.is_file():
        write_private(file, f"grix-{secrets.token_urlsafe(32)}\n")
    document = tenant_document(file.read_text().strip())
    write_private(home.tenant_file, yaml.safe_dump(document, sort_keys=False))
    return document
