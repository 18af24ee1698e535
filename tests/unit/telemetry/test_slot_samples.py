"""Samples of a machine whose cards are shared: a node per pool, a sick card takes all its slots, and jobs on slots are no orphans."""

from __future__ import annotations

from schemas.catalog import Pool, SlotKind, Slots
from schemas.codec import decode
from schemas.nodes import GpuProcess, GpuSample, Health, NodeSampled
from services.runtime.bus.memory import MemoryBus
from services.runtime.virtual import VirtualClock, run_virtual
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.core.node import restored
from services.telemetry.shell.agent import Agent, AgentSettings
from services.telemetry.shell.source import NodeReading
from tests.build import CLUSTER, START_MS, topic_partitions
from tests.unit.telemetry.telemetry_rig import Fed, gpu

HALF = Pool(
    gpus=4,
    node_gpus=4,
    gpu_model="H100",
    memory_mib=40_960,
    slots=Slots(of="h100", kind=SlotKind.MPS, per_card=2),
)
SETTINGS = AgentSettings(nodes=("n00",), cluster=CLUSTER, pool="h100", partition=0, slots={"h100-half": HALF})


class Cards:
    name, driver = "nvml", "1"

    def __init__(self, *cards: GpuSample) -> None:
        self.cards = list(cards)

    async def read(self, node: str) -> NodeReading:
        return NodeReading(self.cards)


def sampled(*cards: GpuSample) -> list[NodeSampled]:
    async def once(clock: VirtualClock) -> list[NodeSampled]:
        agent = Agent(SETTINGS, MemoryBus(topic_partitions(), clock=clock), clock, Cards(*cards))
        return [decode(sent.headers, sent.value).event for sent in await agent.sample_once()]

    return run_virtual(once, START_MS)


def test_one_machine_is_two_nodes_with_the_slots_of_a_card_in_a_row() -> None:
    whole, halves = sampled(gpu(0, power_w=400.0), gpu(1))
    assert (whole.node, whole.pool, whole.machine, whole.slots_per_card) == ("n00", "h100", "n00", 1)
    assert (halves.node, halves.pool, halves.machine, halves.slots_per_card) == (
        "n00+h100-half",
        "h100-half",
        "n00",
        2,
    )
    assert [slot.uuid for slot in halves.gpus] == ["GPU-0/0", "GPU-0/1", "GPU-1/0", "GPU-1/1"]
    assert [slot.index for slot in halves.gpus] == [0, 1, 2, 3]
    assert (halves.gpus[0].memory_total_mib, halves.gpus[0].power_w) == (40_960.0, 200.0)
    assert whole.order == halves.order


def test_a_sick_card_takes_all_its_slots_and_no_others() -> None:
    fed = Fed(TelemetryHandler(_catalog()))
    for event in sampled(gpu(0), gpu(1, error="fell off the bus")):
        fed.feed(fed.record(event))
    states = {state.node: state for state in fed.lines}
    assert [one.healthy for one in states["n00"].gpus] == [True, False]
    assert [one.healthy for one in states["n00+h100-half"].gpus] == [True, True, False, False]
    assert {state.health for state in fed.lines} == {Health.DEGRADED}
    halves = states["n00+h100-half"]
    assert (halves.machine, halves.slots_per_card) == ("n00", 2)
    again = restored(halves)
    assert (again.machine, again.slots_per_card) == ("n00", 2)


def test_a_job_on_a_slot_is_no_orphan_of_its_card_and_a_stranger_is() -> None:
    ours, stranger = GpuProcess(pid=1, memory_mib=9_000, job_id="j"), GpuProcess(pid=2, memory_mib=9_000)
    whole, halves = sampled(gpu(0, processes=[ours]), gpu(1, processes=[ours, stranger]))
    assert [card.processes for card in whole.gpus] == [[], [stranger]]
    assert whole.gpus[0].memory_used_mib is None
    assert all(not slot.processes and slot.memory_used_mib is None for slot in halves.gpus)


def _catalog():
    from schemas.catalog import Catalog, Cluster

    whole = Pool(gpus=2, node_gpus=2, gpu_model="H100", memory_mib=81_920)
    return Catalog(
        clusters={CLUSTER: Cluster(partition=0, pools={"h100": whole, "h100-half": HALF})}, default_cluster=CLUSTER
    )
