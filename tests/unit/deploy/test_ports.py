"""Chosen ports are free and outside the range of outgoing connections."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from deploy.local.ports import REMEMBERED, free_port, is_free

EACH = 60
"""Drawn at random from the whole range, five times as many would almost surely meet."""


def test_a_chosen_port_can_be_bound() -> None:
    port = free_port()
    assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert is_free(port)


def test_a_chosen_port_is_never_lent_to_outgoing_connections() -> None:
    lowest, highest = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(not lowest <= free_port() <= highest for _ in range(50))


def test_taken_ports_are_avoided() -> None:
    first = free_port()
    assert free_port(taken=(first,)) != first


def test_a_port_is_not_given_twice_in_a_while() -> None:
    ports = [free_port() for _ in range(REMEMBERED)]
    assert len(set(ports)) == REMEMBERED


def test_processes_that_choose_at_once_never_choose_the_same() -> None:
    program = (
        f"from deploy.local.ports import free_port\nprint(*[free_port() for _ in range({EACH})], flush=True)\ninput()\n"
    )
    with ExitStack() as running:
        others = [
            running.enter_context(
                subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(4)
        ]
        lines = [other.stdout.readline() for other in others if other.stdout is not None]
        ports = [free_port() for _ in range(EACH)] + [int(word) for line in lines for word in line.split()]
        for other in others:
            other.communicate(b"\n")
    assert len(ports) == 5 * EACH
    assert len(set(ports)) == 5 * EACH
