"""Free ports on loopback, and whether one is taken.

Owns port choice. A port is chosen some seconds before its server binds it, and a killed server's port is free until it is back; so
every process chooses from a stretch of its own, and none twice in a while. Refuses the range the kernel gives to outgoing
connections: a client that keeps calling a dead broker there can be given the broker's own port, connect to itself and keep the
broker from binding again.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 15_000
HIGHEST_DEFAULT = 32_000
TRIES_MAX = 1_000
STRETCH = 200
"""Ports per process, some 80 stretches: more than processes of one machine that start stacks at the same time."""
REMEMBERED = 120
"""Given ports that are not given again; a stack needs about a dozen."""


class _Stretch:
    """Ports of this process alone: it listens on the first of them as long as it lives, so nothing is left when it dies."""

    def __init__(self, mark: socket.socket | None, first: int, last: int) -> None:
        self.pid = os.getpid()
        self.first = first
        self.last = last
        self.given: deque[int] = deque(maxlen=REMEMBERED)
        self._mark = mark


_own: _Stretch | None = None


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback now."""
    probe = _listening(port)
    if probe is None:
        return False
    probe.close()
    return True


def free_port(taken: tuple[int, ...] = ()) -> int:
    """A port on loopback that nothing listens on, that outgoing connections will not use, nor another process's stack."""
    global _own
    if _own is None or _own.pid != os.getpid():  # a forked child must not share its parent's
        _own = _claimed()
    draw = random.SystemRandom()
    for _ in range(TRIES_MAX):
        port = draw.randint(_own.first, _own.last)
        if port not in taken and port not in _own.given and is_free(port):
            _own.given.append(port)
            return port
    raise OSError(f"No free port between {_own.first} and {_own.last} on {HOST}: stop what is listening there.")


def _claimed() -> _Stretch:
    """A stretch that no other process has; the whole range where all are taken."""
    below_ephemeral = _lowest_ephemeral() - 1
    highest = min(HIGHEST_DEFAULT, below_ephemeral) if below_ephemeral > LOWEST + STRETCH else HIGHEST_DEFAULT
    firsts = list(range(LOWEST, highest - STRETCH + 2, STRETCH))
    random.SystemRandom().shuffle(firsts)
    for first in firsts:
        mark = _listening(first)
        if mark is not None:
            return _Stretch(mark, first + 1, first + STRETCH - 1)
    return _Stretch(None, LOWEST, highest)


def _listening(port: int) -> socket.socket | None:
    """A socket that listens there; None if somebody else does."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
        probe.listen(1)
    except OSError:
        probe.close()
        return None
    return probe


def _lowest_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return HIGHEST_DEFAULT + 1
