"""LanguageDetector: a shell around ``core.language.decide`` and the lid.176 model."""

from __future__ import annotations

from typing import Any

from ray import serve

from serve_app.core.language import LanguageGuess, decide
from serve_app.edge.language_id import LanguageId


@serve.deployment
class LanguageDetector:
    """Guesses the language of a text among the matrix's. Scales apart from Routers: it is CPU-bound."""

    def __init__(self) -> None:
        self._model = LanguageId()
        self._languages: list[str] = []
        self._equivalent: list[list[str]] = []
        self._min_confidence = 0.5
        # The first guess builds tables; no request shall wait for them.
        decide("hello", self._model.predict, None)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """The matrix's languages, those that count as one, and the floor; they change in place."""
        self._languages = list(user_config["languages"])
        self._equivalent = [list(group) for group in user_config["equivalent"]]
        self._min_confidence = float(user_config["min_confidence"])

    async def detect(self, text: str, session_language: str | None) -> LanguageGuess:
        """Never raises on any string."""
        return decide(
            text,
            self._model.predict,
            session_language,
            languages=self._languages,
            min_confidence=self._min_confidence,
            equivalent=self._equivalent,
        )
