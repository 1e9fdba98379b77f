"""The language of a request: said by the caller, else heard by the detector, else the session's."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from serve_app.core import budget
from serve_app.core.language import LanguageGuess
from serve_app.openai_request import bad
from serve_app.outcomes import GrixError
from serve_app.ports import Detector
from serve_app.sessions import RequestSession

#: A detector that does not answer in this time costs the request its language, never its answer.
DETECT_LIMIT_S: Final = 0.5


async def language_of(detector: Detector, session: RequestSession, known: Collection[str]) -> LanguageGuess:
    """From the caller's header, else the detector, which keeps a session's language where it is in doubt."""
    said = session.parsed.language
    if said is not None:
        if said not in known:
            raise bad("x-language", f"is not a language of this service; known: {', '.join(sorted(known))}.")
        return LanguageGuess(said, budget.SCRIPT_OF.get(said, "Zyyy"), 1.0, "header", said)
    kept = session.language
    try:
        async with asyncio.timeout(DETECT_LIMIT_S):
            return await detector.detect(session.parsed.last_text, kept)
    except (TimeoutError, GrixError):
        return LanguageGuess(kept or "und", "Zyyy", 0.0, "session" if kept else "none")
