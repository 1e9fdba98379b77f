"""From a policy's ``storage.modelPath`` to files an engine can load, and a digest of what they hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from serve_app.core.model_manifest import DECISIVE
from serve_app.core.names import digest_of
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_store import manifest_at, stored
from serve_app.edge.smollm2 import ModelError, converted
from serve_app.edge.store_types import Limits

__all__ = ["ModelError", "as_model_path", "file_sha256", "hub_revision", "local_model", "model_bytes", "model_digest"]

#: Models that ship with the project, by name.
EMBEDDED: Final[dict[str, str]] = {"tiny-qwen": "deployments/models/tiny_qwen/model"}
ALLOWED: Final = (
    "allowed: tiny-qwen, smollm2, a folder, embedded:NAME, file:///PATH, s3://BUCKET/PATH, ORG/NAME[@REVISION]"
)
_ROOT: Final = Path(__file__).resolve().parents[2]

#: Whoever asks a store what it holds has somebody waiting.
_ASKED: Final = Limits(attempts=2, silence_s=10.0)


def embedded(name: str) -> Path:
    """Folder of an embedded model."""
    if name not in EMBEDDED:
        known = ", ".join(f"embedded:{n}" for n in EMBEDDED)
        raise ModelError(f"embedded:{name} is not a model of this project; allowed: {known}")
    return _ROOT / EMBEDDED[name]


def local_model(model_path: str) -> str:
    """What vLLM gets as ``model``: a local folder, or a hub id, of which vLLM fetches the files. What lies in a model
    store is fetched by :mod:`serve_app.edge.engine_model`.

    Raises:
        ModelError: when a local folder is missing or holds no model.
    """
    scheme, found, rest = model_path.partition(":")
    if found and scheme == "embedded":
        return str(_checked(embedded(rest)))
    if model_path == "smollm2":
        return str(_checked(converted()))
    if model_path.startswith("file://"):
        return str(_checked(Path(model_path.removeprefix("file://"))))
    if found and scheme == "hf":
        return rest.partition("@")[0]
    raise ModelError(f"{model_path}: names no model; {ALLOWED}")


def hub_revision(model_path: str) -> str | None:
    """The revision of a hub model, ``None`` for every other."""
    return model_path.partition("@")[2] or None if model_path.startswith("hf:") else None


def as_model_path(model: str) -> str:
    """What a person writes after ``--model``, as a ``storage.modelPath``: a name, a folder, or a hub id.

    Raises:
        ModelError: when it is none of them.
    """
    if not model.strip():
        raise ModelError(f"--model is empty; {ALLOWED}")
    if model in EMBEDDED:
        return f"embedded:{model}"
    if model == "smollm2" or model.startswith(("embedded:", "file://", "s3://", "hf:")):
        return model
    if Path(model).is_dir():
        return f"file://{Path(model).resolve()}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", model) and not model.startswith((".", "/")):
        return f"hf:{model}" if "@" in model else f"hf:{model}@main"
    raise ModelError(f"--model {model}: is no folder, name or hub id; {ALLOWED}")


def _checked(folder: Path) -> Path:
    """The folder, when every file of its weight index is there.

    Raises:
        ModelError: naming what is missing.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: is not a model folder: config.json is missing")
    index = folder / "model.safetensors.index.json"
    shards: Sequence[str] = ["model.safetensors"]
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    missing = [s for s in shards if not (folder / s).is_file()]
    if missing:
        raise ModelError(f"{folder}: weights are missing: {', '.join(missing)}")
    return folder


def model_digest(model_path: str) -> str:
    """SHA-256 over names and contents of a model's files; of a hub's address, where the files are elsewhere.

    Raises:
        ModelError: when a model is missing, or its store does not say what it holds.
    """
    address = stored(model_path)
    if address is not None:
        return manifest_at(address, ModelCache(), _ASKED).weights_digest
    local = local_model(model_path)
    if not Path(local).is_dir():
        return digest_of({"uri": model_path})
    folder = Path(local)
    files = [f for f in folder.iterdir() if f.name.endswith(DECISIVE)]
    return digest_of({f.name: file_sha256(f) for f in files})


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def model_bytes(model_path: str) -> int | None:
    """Size of a model's weights in bytes, ``None`` where the files are on a hub.

    Raises:
        ModelError: as :func:`model_digest`.
    """
    address = stored(model_path)
    if address is not None:
        files = manifest_at(address, ModelCache(), _ASKED).files
        return sum(f.size_bytes for f in files if f.path.endswith(".safetensors") and "/" not in f.path)
    local = Path(local_model(model_path))
    if not local.is_dir():
        return None
    return sum(f.stat().st_size for f in local.glob("*.safetensors"))
