"""What the load client reads of HTTP: where an answer ends, whether it is whole, where its first text is."""

from __future__ import annotations

import re
from typing import Final

#: The first text of an answer: the opening event of a stream, with the role, has an empty one.
FIRST_TEXT: Final = re.compile(rb'"(?:content|text)":\s?"[^"]')
_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.I)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.I)
_CLOSES: Final = re.compile(rb"\r\nconnection:\s*close", re.I)
_FINISH: Final = re.compile(rb'"finish_reason":\s?"(?:length|stop)"')


class Body:
    """Bytes of one answer's body out of the bytes of a connection: chunked, of known length, or until the end."""

    def __init__(self, head: bytes) -> None:
        self.status = int(head[9:12])
        self.closes = _CLOSES.search(head) is not None
        self._chunked = _CHUNKED.search(head) is not None
        length = _LENGTH.search(head)
        self._left: int | None = 0 if self._chunked else int(length.group(1)) if length else None
        self._buffer = b""
        self._in_chunk = False
        self.until_closed = not self._chunked and length is None
        self.complete = not self._chunked and self._left == 0

    def feed(self, data: bytes) -> bytes:
        """What of ``data`` is body."""
        if not self._chunked:
            if self._left is not None:
                self._left -= len(data)
                self.complete = self._left <= 0
            return data
        data = self._buffer + data
        parts = []
        place = 0
        while not self.complete:
            if not self._in_chunk:
                end = data.find(b"\r\n", place)
                if end < 0:
                    break
                self._left = int(data[place:end].split(b";")[0], 16)
                if self._left == 0:
                    # No server here sends trailers: the empty line that follows ends the answer.
                    if len(data) < end + 4:
                        break
                    self.complete = True
                    break
                self._in_chunk, place = True, end + 2
            assert self._left is not None
            if len(data) < place + self._left + 2:
                break
            parts.append(data[place : place + self._left])
            place += self._left + 2
            self._in_chunk = False
        if self._in_chunk:
            # The size line is read; the part of the chunk that is here waits for its rest.
            self._buffer = data[place:]
        else:
            self._buffer = data[place:] if not self.complete else b""
        return b"".join(parts)


def fault_of(status: int, body: bytes) -> str:
    """What is wrong with a whole answer; empty when nothing is."""
    if status != 200:
        return f"status {status}"
    if b"data: [DONE]" not in body[-64:]:
        return "no [DONE]"
    if b'data: {"error"' in body:
        return "error in the stream"
    return "" if _FINISH.search(body) else "no finish_reason"
