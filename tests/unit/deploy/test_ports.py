"""Chosen ports are free and outside the range of outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

from deploy.local.ports import free_port, is_free


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
