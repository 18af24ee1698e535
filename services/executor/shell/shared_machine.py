"""What the configuration and the catalog say of a machine whose cards several pools share, and which device each slot is.

Owns: `GPUGRID_SLOT_POOLS` and what follows from it: the machine's nodes, its cutter, and the UUIDs that jobs get, anew after every cut.
Refuses: several machines in one process, and schedulers other than our own processes. Read next: `cards.py`, `drivers/cutting.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.catalog import Cluster, SlotKind
from schemas.sharing import node_name, whole_pool
from services.executor.shell.drivers.cutting import Cutter, NvidiaCutter, PlayedCutter, SharedMachine, mig_devices
from services.executor.shell.drivers.environment import Site, SlotShare
from services.runtime.clock import Clock
from services.runtime.config import ConfigError


def shared_machine(
    nodes: tuple[str, ...], slot_pools: tuple[str, ...], driver: str, cluster: Cluster
) -> SharedMachine | None:
    """None if nothing is shared. Raises ConfigError."""
    if not slot_pools:
        return None
    if len(nodes) != 1 or driver not in ("process", "simulated"):
        raise ConfigError(
            "GPUGRID_SLOT_POOLS needs one machine in GPUGRID_NODES, and GPUGRID_DRIVER process or simulated: batch systems share "
            "cards by their own means."
        )
    try:
        whole = whole_pool(cluster, slot_pools)
    except ValueError as error:
        raise ConfigError(f"GPUGRID_SLOT_POOLS: {error}.") from None
    slots = {name: shares for name in slot_pools if (shares := cluster.pools[name].slots) is not None}
    return SharedMachine(name=nodes[0], cards=cluster.pools[whole].node_gpus, whole=whole, slots=slots)


def nodes_of(machine: SharedMachine) -> tuple[str, ...]:
    """The machine's own node first."""
    return tuple(node_name(machine.name, pool, machine.whole) for pool in (machine.whole, *machine.slots))


def shares_of(machine: SharedMachine, cluster: Cluster, mps_dir: Path) -> dict[str, SlotShare]:
    """What jobs on the machine's slots are told, by node."""
    return {
        node_name(machine.name, name, machine.whole): SlotShare(
            per_card=slots.per_card,
            memory_mib=cluster.pools[name].memory_mib,
            threads_pct=slots.threads_pct,
            mps_dir=str(mps_dir) if slots.kind is SlotKind.MPS else "",
        )
        for name, slots in machine.slots.items()
    }


def cutter_of(machine: SharedMachine | None, driver: str, clock: Clock, mps_dir: Path, command: str) -> Cutter | None:
    """None where nothing is shared."""
    if machine is None:
        return None
    return PlayedCutter(machine, clock) if driver == "simulated" else NvidiaCutter(machine, mps_dir, command=command)


def device_names(
    machine: SharedMachine, site: Site, cards: tuple[str, ...], nvml: Any = None
) -> Callable[[list[str]], None]:
    """To be called with how the cards are cut: puts the UUIDs of all slots into `site`. `cards`: the cards' own."""

    def name(pools: list[str]) -> None:
        library = nvml or _nvml()
        for pool, slots in machine.slots.items():
            uuids = [""] * (machine.cards * slots.per_card)
            for card, cut in enumerate(pools):
                if cut != pool or card >= len(cards):
                    continue
                mig = slots.kind is SlotKind.MIG
                found = _mig_uuids(library, card) if mig else [cards[card]] * slots.per_card
                uuids[card * slots.per_card : card * slots.per_card + len(found)] = found[: slots.per_card]
            site.uuids[node_name(machine.name, pool, machine.whole)] = tuple(uuids)

    return name


def _mig_uuids(nvml: Any, card: int) -> list[str]:
    if nvml is None:
        return []
    try:
        return [uuid for _, uuid in mig_devices(nvml, nvml.nvmlDeviceGetHandleByIndex(card))]
    except nvml.NVMLError:
        return []


def _nvml() -> Any:
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return pynvml
    return None
