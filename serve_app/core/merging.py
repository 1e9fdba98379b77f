"""When deltas of a stream are merged: never for few streams, more the more there are. First and last leave at once."""

from __future__ import annotations

from typing import Final

#: Up to so many requests in an engine, each delta leaves as it comes.
UNMERGED: Final = 4
WINDOW_S_PER_REQUEST: Final = 0.002
LONGEST_WINDOW_S: Final = 0.08


def merge_window_s(unfinished: int) -> float:
    """How long deltas are gathered with so many requests in the engine; 0.0: not at all.

    Each delta costs a pass through vLLM's output layer, two processes and a socket. Twelve times a second is more
    than a reader sees.
    """
    if unfinished <= UNMERGED:
        return 0.0
    return min(LONGEST_WINDOW_S, unfinished * WINDOW_S_PER_REQUEST)


def merge_wait_s(unfinished: int, now_s: float) -> float:
    """How long a delta waits at ``now_s``: until the window's next edge, the same for all streams.

    What leaves together wakes each process on its way once.
    """
    window_s = merge_window_s(unfinished)
    return window_s - now_s % window_s if window_s else 0.0
