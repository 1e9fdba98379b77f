"""tiny-qwen: a Qwen2 of a few million parameters that recites a customer-service FAQ in six languages.

It lets a machine without a model hub run the real engine. It recites, it does not understand: a question
it has not seen may get another topic's answer, in the right language.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent
CORPUS_DIR = PACKAGE_DIR / "corpus"
MODEL_DIR = PACKAGE_DIR / "model"
