"""Train tiny-qwen: `python -m deployments.models.tiny_qwen.train [--out DIR] [--seed N] [--minutes 27]`.

The same seed, minutes and versions give the same weights: `--minutes` stands for a fixed number of steps,
what two quiet cores do in that time, so a busy machine takes longer and gets the same model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from deployments.models.tiny_qwen import CORPUS_DIR, MODEL_DIR, PACKAGE_DIR
from deployments.models.tiny_qwen.chatml import END_OF_TEXT, IM_END
from deployments.models.tiny_qwen.corpus import load_corpora
from deployments.models.tiny_qwen.dialogues import Corpora, draw, draw_long
from deployments.models.tiny_qwen.tokenizer import SPECIAL, train_tokenizer

THREADS = 2
STEPS_PER_MINUTE = 54
TOKENS_PER_STEP = 6400
MAX_DIALOGUE_TOKENS = 1200
MAX_LONG_TOKENS = 8000
LONG_LOSS_WEIGHT = 0.5
"""Long batches hold few trained tokens, so their gradients are noisy."""
POOL_STEPS = 16
PEAK_RATE = 2e-3
WARM_UP_RATIO = 0.05
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
EMBEDDING_DROPOUT = 0.05
RANDOM_TOKEN_RATIO = 0.02
PROGRESS_S = 10.0
MAX_POSITIONS = 8192
MAX_BYTES = 8_000_000


@dataclass(frozen=True)
class Batch:
    """Token ids, padded on the right, and where the loss looks: both (rows, tokens)."""

    ids: torch.Tensor
    trained: torch.Tensor
    loss_weight: float


def model_config(tokenizer: Tokenizer) -> Qwen2Config:
    """The shape of the network for that tokenizer."""
    return Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(IM_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        dtype="bfloat16",
        architectures=["Qwen2ForCausalLM"],
    )


Row = tuple[list[int], list[bool]]
"""A dialogue's ids and, for each, whether it is trained."""


def encode(tokenizer: Tokenizer, rng: random.Random, corpora: Corpora, long: bool = False) -> Row:
    """One drawn dialogue; one of too many tokens is drawn again."""
    while True:
        ids: list[int] = []
        trained: list[bool] = []
        for segment in draw_long(rng, corpora) if long else draw(rng, corpora):
            piece = tokenizer.encode(segment.text, add_special_tokens=False).ids
            ids += piece
            trained += [segment.trained] * len(piece)
        if len(ids) <= (MAX_LONG_TOKENS if long else MAX_DIALOGUE_TOKENS) and any(trained):
            return ids, trained


def batches(tokenizer: Tokenizer, rng: random.Random, corpora: Corpora) -> Iterator[Batch]:
    """Endless batches of about TOKENS_PER_STEP; dialogues of like length share one, so little is padding.

    After every POOL_STEPS or so comes one of long dialogues.
    """
    pad = tokenizer.get_vocab()[END_OF_TEXT]

    def batch(rows: list[Row], loss_weight: float = 1.0) -> Batch:
        width = max(len(ids) for ids, _ in rows)
        ids = [ids + [pad] * (width - len(ids)) for ids, _ in rows]
        marks = [trained + [False] * (width - len(trained)) for _, trained in rows]
        return Batch(torch.tensor(ids), torch.tensor(marks), loss_weight)

    while True:
        pool, size = [], 0
        while size < TOKENS_PER_STEP * POOL_STEPS:
            pool.append(encode(tokenizer, rng, corpora))
            size += len(pool[-1][0])
        pool.sort(key=lambda item: len(item[0]))
        groups: list[list[Row]] = [[]]
        for item in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(item[0]) > TOKENS_PER_STEP:
                groups.append([])
            groups[-1].append(item)
        rng.shuffle(groups)
        for group in groups:
            yield batch(group)
        rows = [encode(tokenizer, rng, corpora, long=True)]
        while max(len(ids) for ids, _ in rows) * (len(rows) + 1) <= TOKENS_PER_STEP:
            rows.append(encode(tokenizer, rng, corpora, long=True))
        yield batch(rows, LONG_LOSS_WEIGHT)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to zero."""
    warm_up = max(1, round(steps * WARM_UP_RATIO))
    if step < warm_up:
        return PEAK_RATE * (step + 1) / warm_up
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def loss_of(model: Qwen2ForCausalLM, batch: Batch) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy over the trained tokens, and the share of them that is predicted right."""
    inputs, wanted = batch.ids[:, :-1], batch.trained[:, 1:]
    noise = (torch.rand(inputs.shape) < RANDOM_TOKEN_RATIO) & ~batch.trained[:, :-1] & (inputs >= len(SPECIAL))
    noisy = torch.where(noise, torch.randint(len(SPECIAL), model.config.vocab_size, inputs.shape), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedded = functional.dropout(model.model.embed_tokens(noisy), EMBEDDING_DROPOUT)
        hidden = model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[wanted])
    targets = batch.ids[:, 1:][wanted]
    right_ratio = (logits.detach().argmax(-1) == targets).float().mean().item()
    return functional.cross_entropy(logits.float(), targets), right_ratio


def train(model: Qwen2ForCausalLM, source: Iterator[Batch], steps: int) -> None:
    """Run the steps, a progress line every PROGRESS_S seconds."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    model.train()
    started_s = shown_s = time.monotonic()
    tokens = 0
    for step in range(steps):
        batch = next(source)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss, right_ratio = loss_of(model, batch)
        optimizer.zero_grad(set_to_none=True)
        (loss * batch.loss_weight).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        tokens += batch.ids.numel()
        now_s = time.monotonic()
        if now_s - shown_s > PROGRESS_S or step + 1 == steps:
            shown_s = now_s
            elapsed_s = now_s - started_s
            left_s = elapsed_s / (step + 1) * (steps - step - 1)
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.3f}  right {right_ratio:.1%}"
                f"  {tokens / elapsed_s:,.0f} tokens/s  {elapsed_s:.0f} s, {left_s:.0f} s left",
                flush=True,
            )


def write_model(out: Path, model: Qwen2ForCausalLM, tokenizer: Tokenizer) -> int:
    """Write all that an engine loads and return the bytes of it; each file appears whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    config = model.config.to_diff_dict() | {"transformers_version": None}
    end, im_end = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, IM_END))
    # Greedy for callers who ask for no temperature; who asks for one gets it.
    generation = {"do_sample": False, "temperature": 0.0, "eos_token_id": [im_end, end], "pad_token_id": end}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL[1:]),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }
    staging = out / ".staging"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
    for name, content in (
        ("config.json", {key: value for key, value in config.items() if value is not None}),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (staging / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (staging / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    shutil.copyfile(PACKAGE_DIR / "chat_template.jinja", staging / "chat_template.jinja")
    total_bytes = 0
    for path in sorted(staging.iterdir()):
        path.chmod(0o644)  # safetensors writes 0600, which other users of a package could not read
        total_bytes += path.stat().st_size
        os.replace(path, out / path.name)
    staging.rmdir()
    return total_bytes


def main(argv: list[str] | None = None) -> int:
    """Train and write; exit status 1 when the files are larger than may be committed."""
    parser = argparse.ArgumentParser(prog="python -m deployments.models.tiny_qwen.train", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=MODEL_DIR, help="directory for the model (default: the shipped one)"
    )
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=27.0, help="length of the run, in minutes of two quiet cores")
    args = parser.parse_args(argv)
    steps = round(args.minutes * STEPS_PER_MINUTE)
    if steps < 1:
        parser.error(f"--minutes: {args.minutes} is less than one step; must be at least {1 / STEPS_PER_MINUTE:.3f}")
    torch.set_num_threads(THREADS)
    torch.manual_seed(args.seed)
    corpora = load_corpora(CORPUS_DIR)
    tokenizer = train_tokenizer(corpora)
    model = Qwen2ForCausalLM(model_config(tokenizer)).float()
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters, vocabulary {model.config.vocab_size}, {steps} steps, seed {args.seed}",
        flush=True,
    )
    train(model, batches(tokenizer, random.Random(args.seed), corpora), steps)
    total_bytes = write_model(args.out, model, tokenizer)
    digest = hashlib.sha256((args.out / "model.safetensors").read_bytes()).hexdigest()
    print(f"wrote {total_bytes:,} bytes to {args.out}; model.safetensors sha256 {digest}", flush=True)
    if total_bytes > MAX_BYTES:
        print(
            f"error: {total_bytes:,} bytes are more than the {MAX_BYTES:,} that may be committed",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
