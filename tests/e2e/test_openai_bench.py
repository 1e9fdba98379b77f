"""vLLM's own load test, ``vllm bench serve``, runs against the region as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import LiveRegion

#: ``vllm bench serve`` as a program: vLLM's own command line looks for a package named vllm, and the CPU lane has none.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
TOKENIZER = Path(__file__).resolve().parents[2] / "deployments/models/tiny_qwen/model"
PROMPTS = 6
TOKENS = 8


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve(region: LiveRegion, tmp_path: Path, backend: str, endpoint: str) -> None:
    command = [
        *(sys.executable, "-c", BENCH_SERVE),
        *("--backend", backend, "--base-url", region.url, "--endpoint", endpoint),
        *("--model", "qwen-chat", "--tokenizer", str(TOKENIZER), "--dataset-name", "random"),
        *("--random-input-len", "16", "--random-output-len", str(TOKENS), "--ignore-eos"),
        *("--num-prompts", str(PROMPTS), "--max-concurrency", "3", "--seed", "1", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
    ]
    environment = {**os.environ, "OPENAI_API_KEY": region.key, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (PROMPTS, 0)
    assert result["total_output_tokens"] == PROMPTS * TOKENS
