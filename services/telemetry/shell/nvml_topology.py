"""How the cards of a node hang together: which reach each other over NVLink, and each one's NUMA node.

Read once at the start and after a driver reload: n² calls. Read next: `nvml.py`.
"""

from __future__ import annotations

from typing import Any

from schemas.nodes import Topology


def read_topology(library: Any, handles: dict[int, Any]) -> Topology:
    """Cards that can't tell are alone, on NUMA node -1."""
    domain = {index: index for index in handles}
    for one, first in handles.items():
        for other, second in handles.items():
            if one < other and _linked(library, first, second):
                joined, left = domain[one], domain[other]
                domain = {index: joined if group == left else group for index, group in domain.items()}
    groups: dict[int, list[int]] = {}
    for index, group in domain.items():
        groups.setdefault(group, []).append(index)
    return Topology(
        nvlink_domains=[sorted(members) for _, members in sorted(groups.items())],
        numa_nodes=[_numa(library, handle) for handle in handles.values()],
    )


def _linked(library: Any, one: Any, other: Any) -> bool:
    try:
        status = library.nvmlDeviceGetP2PStatus(one, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
    except library.NVMLError:
        return False
    return status == library.NVML_P2P_STATUS_OK


def _numa(library: Any, handle: Any) -> int:
    try:
        node = library.nvmlDeviceGetNumaNodeId(handle)
    except library.NVMLError:
        return -1
    return node if node < 2**31 else -1
