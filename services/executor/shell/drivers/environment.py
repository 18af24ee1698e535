"""What a job finds in its environment: its GPUs, its gang, its identity, and the paths of the checkpoint protocol.

Owns: the names and values, documented in `docs/jobs.md`, and looking for a free port. Refuses: nothing: what a job sets itself wins,
except for GPUs and identity, which it must not choose. Read next: `process.py`.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from schemas.placements import Assignment

MASTER_PORT_FIRST = 20_000
MASTER_PORT_COUNT = 12_000
"""Below Linux' ephemeral range (32768), so that an outgoing connection can't have taken the port of a gang."""
PORTS_TRIED_MAX = 64
"""From a gang's own port upwards: so many taken in a row is no coincidence."""
REQUEST_FILE = "checkpoint-request"
ANSWER_FILE = "checkpoint-answer"
PROGRESS_FILE = "progress"
GPUS_FILE = "gpus"
GPUS_ANSWER_FILE = "gpus-answer"
LOCAL_HOST = "127.0.0.1"


class Site(Struct, frozen=True, kw_only=True):
    """What the process driver knows of its surroundings: GPU UUIDs and network addresses by node, where known."""

    nodes: tuple[str, ...]
    uuids: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, str] = {}

    def host(self, node: str) -> str:
        """An address under which the node is reached; nodes of this very process are on this machine."""
        return self.hosts.get(node) or (LOCAL_HOST if node in self.nodes else node)


def environment_of(
    node: str,
    assignment: Assignment,
    folder: Path,
    site: Site,
    inherited: Mapping[str, str],
    *,
    port: int | None = None,
    socket_path: str = "",
) -> dict[str, str]:
    """The whole environment of a job's process on this node. gpugrid's own settings are not handed down.

    `port`: the master's of a gang, else one that is free here.
    """
    found = {name: value for name, value in inherited.items() if not name.startswith("GPUGRID_")}
    found.update(_gang(node, assignment, site, port or first_port(assignment)))
    if assignment.traceparent:
        found["TRACEPARENT"] = assignment.traceparent
    found.update(assignment.environment)
    found["CUDA_VISIBLE_DEVICES"] = visible_devices(assignment.gpus, site.uuids.get(node, ()))
    found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    found.update(
        GPUGRID_JOB_ID=assignment.job_id,
        GPUGRID_ATTEMPT=str(assignment.attempt),
        GPUGRID_NODE=node,
        GPUGRID_RESUME_FRACTION=repr(assignment.resume_fraction),
        GPUGRID_RESUME_LOCATION=assignment.resume_location,
        GPUGRID_CHECKPOINT_REQUEST=str(folder / REQUEST_FILE),
        GPUGRID_CHECKPOINT_ANSWER=str(folder / ANSWER_FILE),
        GPUGRID_PROGRESS=str(folder / PROGRESS_FILE),
        GPUGRID_SOCKET=socket_path,
        GPUGRID_GPUS=str(folder / GPUS_FILE),
        GPUGRID_GPUS_ANSWER=str(folder / GPUS_ANSWER_FILE),
        GPUGRID_PORT=str(port or first_port(assignment)),
    )
    return found


def visible_devices(gpus: Sequence[int], uuids: Sequence[str]) -> str:
    """UUIDs where all are known (an index moves when a card drops out), else indices."""
    if all(gpu < len(uuids) for gpu in gpus):
        return ",".join(uuids[gpu] for gpu in gpus)
    return ",".join(str(gpu) for gpu in gpus)


def first_port(assignment: Assignment) -> int:
    """Where the search for a free port begins: different for every attempt, so that neighbours seldom meet."""
    name = f"{assignment.job_id}/{assignment.attempt}".encode()
    return MASTER_PORT_FIRST + zlib.crc32(name) % MASTER_PORT_COUNT


def free_port(first: int) -> int | None:
    """The first port from `first` on that nobody listens on; None if there is none among the next few."""
    for offset in range(PORTS_TRIED_MAX):
        port = MASTER_PORT_FIRST + (first - MASTER_PORT_FIRST + offset) % MASTER_PORT_COUNT
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return None


def _gang(node: str, assignment: Assignment, site: Site, port: int) -> dict[str, str]:
    """As launchers of the torchrun kind expect it. `RANK` is that of this node's first process."""
    local = max(1, len(assignment.gpus))
    nodes = assignment.nodes or [node]
    master = nodes[0]
    return {
        "MASTER_ADDR": LOCAL_HOST if len(nodes) == 1 else site.host(master),
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(assignment.world_size if len(nodes) > 1 else local),
        "LOCAL_WORLD_SIZE": str(local),
        "RANK": str(assignment.node_rank * local),
        "NODE_RANK": str(assignment.node_rank),
        "NNODES": str(len(nodes)),
    }
