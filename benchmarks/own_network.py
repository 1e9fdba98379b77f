"""A network of the benchmark's own: as root, this process and its children see nothing but a loopback of their own.

Profile ``fast`` listens on every interface, so it starts only where there is none but loopback.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Final

_NEW_NETWORK: Final = 0x40000000
_SET_FLAGS: Final = 0x8914
_UP_AND_RUNNING: Final = 0x1 | 0x40


def enter() -> bool:
    """Moves this process into a network namespace of its own with its loopback up; whether that was possible."""
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    return True
