"""What an assistant said, heard from the bytes of its answer as they go to the client."""

from __future__ import annotations

from typing import Any, Final

from serve_app.core.language import UNDETERMINED, decide
from serve_app.core.openings import EVENT_END, MOST_HELD_BYTES, parsed, payload
from serve_app.core.sessions import TEXT_BYTES
from serve_app.core.table import Languages
from serve_app.core.texts import clean_text

#: A whole answer larger than this is not read for its text.
WHOLE_BYTES: Final = 1024 * 1024
#: What tells an answer's language.
LANGUAGE_CHARS: Final = 500


def _first(value: Any) -> dict[str, Any]:
    """The choice with index 0 of a document or event; empty where there is none."""
    choices = value.get("choices") if isinstance(value, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            return choice
    return {}


def _content(message: Any) -> str:
    text = message.get("content") if isinstance(message, dict) else None
    return clean_text(text) if isinstance(text, str) else ""


def text_of_whole(body: bytes) -> str:
    """The text of the first choice of a whole answer; ``""`` when it has none, as with a call of a tool."""
    return "" if len(body) > WHOLE_BYTES else _content(_first(parsed(body)).get("message"))


def language_of_answer(text: str, languages: Languages) -> str | None:
    """The language of an answer, ``None`` where its script and its words do not tell: no model is asked for it."""
    guess = decide(
        text[:LANGUAGE_CHARS],
        lambda _: (),
        None,
        languages=languages.codes,
        min_confidence=languages.min_confidence,
        equivalent=languages.equivalent,
    )
    return None if guess.language == UNDETERMINED else guess.language


class Listener:
    """The text of the first choice of a stream, up to what a session keeps of it; ``done`` once it ended well."""

    def __init__(self) -> None:
        self.done = False
        self._held = b""
        self._texts: list[str] = []
        self._room_bytes = TEXT_BYTES

    def hear(self, data: bytes) -> None:
        self._held += data
        start = 0
        for end in EVENT_END.finditer(self._held):
            self._hear_event(payload(self._held[start : end.start()]))
            start = end.end()
        # An event larger than any of an answer is left out; what follows is read again from its end.
        self._held = self._held[start:][-MOST_HELD_BYTES:]

    def _hear_event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
        elif self._room_bytes > 0:
            text = _content(_first(parsed(data)).get("delta"))
            self._texts.append(text)
            self._room_bytes -= len(text.encode())

    @property
    def text(self) -> str:
        return "".join(self._texts)
