"""Samples of cards as samples of their slots, for a machine whose cards several pools share.

Owns: what of a card is true of each slot: its errors (a sick card takes all its slots with it), model, clocks, utilization and an equal
part of its power. Who uses how much of a shared card's memory can't be told by slot, so neither memory in use nor processes of ours are;
those of others stay with the whole card. Refuses: knowing how cards are cut (the executor says). Read next: `agent.py`.
"""

from __future__ import annotations

from msgspec.structs import replace

from schemas.catalog import Pool
from schemas.nodes import GpuSample
from services.telemetry.shell.source import NodeReading


def of_whole_cards(reading: NodeReading) -> NodeReading:
    """The node of the machine's whole cards."""
    return NodeReading([_without_ours(card) for card in reading.gpus], reading.host, reading.topology)


def of_slots(reading: NodeReading, pool: Pool) -> NodeReading:
    """The node of one of its pools of slots: index is card x slots per card + slot."""
    per_card = pool.slots_per_card
    slots = [_slot(card, pool, slot) for card in reading.gpus for slot in range(per_card)]
    return NodeReading(slots, reading.host)


def _slot(card: GpuSample, pool: Pool, slot: int) -> GpuSample:
    per_card = pool.slots_per_card
    return replace(
        card,
        index=card.index * per_card + slot,
        uuid=f"{card.uuid}/{slot}",
        memory_total_mib=None if card.memory_total_mib is None else float(pool.memory_mib),
        memory_used_mib=None,
        power_w=None if card.power_w is None else card.power_w / per_card,
        energy_j=None if card.energy_j is None else card.energy_j / per_card,
        processes=[],
        processes_total=0,
        mig_instances=[],
    )


def _without_ours(card: GpuSample) -> GpuSample:
    """A job on a slot of this card is no orphan of the whole card."""
    foreign = [process for process in card.processes if process.job_id is None]
    if len(foreign) == len(card.processes):
        return card
    return replace(card, processes=foreign, processes_total=0, memory_used_mib=None)
