"""What the embedded model is trained to answer, read from its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EMBEDDED_MODEL: Final = "embedded:tiny-qwen"
CORPUS: Final = Path(__file__).resolve().parents[2] / "deployments/models/tiny_qwen/corpus"


def corpus_answers(folder: Path = CORPUS) -> dict[str, dict[str, str]]:
    """The answer of each topic, by language and by topic."""
    import yaml

    # The one in C takes a tenth of the time, where PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    told = (yaml.load(file.read_text("utf-8"), loader) for file in sorted(folder.glob("*.yaml")))
    return {corpus["language"]: {topic["id"]: topic["answer"] for topic in corpus["topics"]} for corpus in told}
