"""Free ports on loopback, and whether one is taken.

Owns port choice. Refuses the range the kernel gives to outgoing connections: a client that keeps calling a dead broker
there can be given the broker's own port, connect to itself and keep the broker from binding again.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 15_000
HIGHEST_DEFAULT = 32_000
TRIES_MAX = 200


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(taken: tuple[int, ...] = ()) -> int:
    """A port on loopback that nothing listens on and that outgoing connections will not use."""
    below_ephemeral = _lowest_ephemeral() - 1
    highest = min(HIGHEST_DEFAULT, below_ephemeral) if below_ephemeral > LOWEST + TRIES_MAX else HIGHEST_DEFAULT
    draw = random.SystemRandom()
    for _ in range(TRIES_MAX):
        port = draw.randint(LOWEST, highest)
        if port not in taken and is_free(port):
            return port
    raise OSError(f"No free port between {LOWEST} and {highest} on {HOST}: stop what is listening there.")


def _lowest_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return HIGHEST_DEFAULT + 1
