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


class SlotShare(Struct, frozen=True, kw_only=True):
    """What one slot of a card is: `memory_mib` and, of MPS, the part of the multiprocessors and where daemons are (a folder per card)."""

    per_card: int
    memory_mib: int
    threads_pct: int = 0
    mps_dir: str = ""


class Site(Struct, frozen=True, kw_only=True):
    """What the process driver knows of its surroundings: GPU UUIDs (of slots: MIG devices', or their cards') and network addresses by
    node, where known; `shares`: of nodes whose GPUs are slots."""

    nodes: tuple[str, ...]
    uuids: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, str] = {}
    shares: dict[str, SlotShare] = {}

    def visible(self, node: str, gpus: Sequence[int]) -> str:
        """The devices of these GPUs of the node: UUIDs where all are known (an index moves when a card drops out), else indices."""
        share, uuids = self.shares.get(node), self.uuids.get(node, ())
        if all(gpu < len(uuids) and uuids[gpu] for gpu in gpus):
            return ",".join(dict.fromkeys(uuids[gpu] for gpu in gpus))
        if share is not None and not share.mps_dir:
            return ""  # a MIG device nobody knows: none at all rather than the card that others share
        per_card = 1 if share is None else share.per_card
        return ",".join(dict.fromkeys(str(gpu // per_card) for gpu in gpus))

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
    found["CUDA_VISIBLE_DEVICES"] = site.visible(node, assignment.gpus)
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
    share = site.shares.get(node)
    if share is not None:
        found.update(_sharing(share, assignment.gpus))
    return found


def _sharing(share: SlotShare, slots: Sequence[int]) -> dict[str, str]:
    """A job's slots lie on one card. A limit of MPS is one process's: a job has a process per slot (`LOCAL_WORLD_SIZE`)."""
    found = {"GPUGRID_SLOTS": ",".join(str(slot) for slot in slots), "GPUGRID_SLOT_MEMORY_MIB": str(share.memory_mib)}
    if share.mps_dir and slots:
        found.update(
            CUDA_MPS_PIPE_DIRECTORY=f"{share.mps_dir}/{slots[0] // share.per_card}",
            CUDA_MPS_LOG_DIRECTORY=f"{share.mps_dir}/{slots[0] // share.per_card}",
            CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={share.memory_mib}M",
            CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(share.threads_pct or max(1, 100 // share.per_card)),
        )
    return found


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
