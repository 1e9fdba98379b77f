"""How the command speaks: results on stdout, progress and faults on stderr, one way to fail."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

OK: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2


class Failed(Exception):
    """Ends the command with one clear message and an exit status."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def out(text: str = "") -> None:
    """A line of the result. Odd text (a lone surrogate) never breaks it."""
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    sys.stdout.flush()


def note(text: str) -> None:
    """A line beside the result."""
    sys.stderr.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
    sys.stderr.flush()


def out_json(value: Any) -> None:
    out(json.dumps(value, ensure_ascii=False, indent=2))


class Progress:
    """Lines with the seconds since the start: at each change, and every few seconds without one.

    What is told of several regions at once begins with their names, and each has changes of its own.
    """

    REPEAT_S: Final = 5.0

    def __init__(self, write: Callable[[str], None] = note, now_s: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now_s = write, now_s
        self._began_s = now_s()
        self._last: dict[str, tuple[str, float]] = {}

    def elapsed_s(self) -> float:
        return self._now_s() - self._began_s

    def tell(self, text: str) -> None:
        """Writes ``text`` unless the same was written a moment ago."""
        now_s = self._now_s()
        subject = text.partition(":")[0]
        before, at_s = self._last.get(subject, ("", now_s))
        if before == text and now_s - at_s < self.REPEAT_S:
            return
        self._last[subject] = (text, now_s)
        self._write(f"{now_s - self._began_s:6.1f} s  {text}")
