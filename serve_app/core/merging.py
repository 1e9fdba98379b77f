"""When deltas of a stream are merged: never for few streams, more the more there are. First and last leave at once."""

from __future__ import annotations

from typing import Final

#: Up to so many requests in an engine, each delta leaves as it comes.
UNMERGED: Final = 4
WINDOW_S_PER_REQUEST: Final = 0.002
LONGEST_WINDOW_S: Final = 0.04


def merge_window_s(unfinished: int) -> float:
    """How long deltas are gathered with so many requests in the engine; 0.0: not at all.

    Each delta costs a pass through vLLM's output layer, two processes and a socket. A reader does not see 40 ms.
    """
    if unfinished <= UNMERGED:
        return 0.0
    return min(LONGEST_WINDOW_S, unfinished * WINDOW_S_PER_REQUEST)
