"""Ports nobody listens on. A cluster takes one block, so that two clusters on a machine never meet halfway."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import Final

#: Above the well-known services, below the range from which the kernel takes ports of outgoing connections.
LOWEST: Final = 20_000
HIGHEST: Final = 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` on every interface at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def hold(port: int) -> socket.socket | None:
    """A socket that keeps ``port`` from everybody but servers that share ports, or ``None`` when it is taken.

    Serve's proxies share: two regions that begin at once would each find the port free and then answer each other's
    clients. Close it when the server listens.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("", port))
    except OSError:
        holder.close()
        return None
    # From here on nobody binds the port who does not share it; the order makes the first bind exclusive.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def free_block(size: int, rng: random.Random, free: Callable[[int], bool] = is_free) -> int:
    """First port of ``size`` free ports in a row; the search begins at a random place.

    Raises:
        OSError: when there is no such block between LOWEST and HIGHEST.
    """
    starts = range(LOWEST, HIGHEST - size + 1, size)
    first = rng.randrange(len(starts))
    for i in range(len(starts)):
        start = starts[(first + i) % len(starts)]
        if all(free(port) for port in range(start, start + size)):
            return start
    raise OSError(f"no {size} free ports in a row between {LOWEST} and {HIGHEST}")
