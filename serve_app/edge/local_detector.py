"""The LanguageDetector in the Router's own process: a guess costs less than the way to another one."""

from __future__ import annotations

from collections.abc import Callable

from serve_app.core.language import LanguageGuess, decide
from serve_app.edge.language_id import LanguageId
from serve_app.ports import World


class LocalDetector:
    """The Detector port over lid.176 in this process; the languages are the table's of this moment."""

    def __init__(self, world: Callable[[], World]) -> None:
        self._world = world
        self._model = LanguageId()
        # The first guess builds tables; no request shall wait for them.
        decide("hello", self._model.predict, None)

    async def detect(self, text: str, session_language: str | None) -> LanguageGuess:
        """Never raises on any string."""
        languages = self._world().table.languages
        return decide(
            text,
            self._model.predict,
            session_language,
            languages=languages.codes,
            min_confidence=languages.min_confidence,
            equivalent=languages.equivalent,
        )
