"""Agents, telemetry and the bus together in virtual time: played cards follow placements, a dead agent's node is lost."""

from __future__ import annotations

import asyncio

from schemas.codec import decode_record
from schemas.messages import message
from schemas.nodes import Health, NodeStateChanged
from services.runtime.bus.faults import Unknown
from services.runtime.bus.memory import MemoryBus
from services.runtime.hop import run_hop
from services.runtime.virtual import VirtualClock, run_virtual
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.shell.agent import Agent, AgentSettings, order_of
from services.telemetry.shell.simulated import SimulatedSource
from tests.build import CLUSTER, POOL, START_MS, catalog, topic_partitions
from tests.unit.executor.executor_rig import assignment, placed


class Scene:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.catalog = catalog(gpus=16)
        self.bus = MemoryBus(topic_partitions(), clock=clock)
        self.source = SimulatedSource(self.catalog.clusters[CLUSTER].pools[POOL], clock.now_ms)
        self.tasks: dict[str, asyncio.Task] = {}

    def agent(self, *nodes: str) -> Agent:
        settings = AgentSettings(nodes=nodes, cluster=CLUSTER, pool=POOL, partition=0, client_id=f"agent-{nodes[0]}")
        agent = Agent(settings, self.bus, self.clock, self.source)
        self.tasks[nodes[0]] = asyncio.create_task(agent.run())
        return agent

    def telemetry(self) -> None:
        handler = TelemetryHandler(self.catalog)
        self.tasks["telemetry"] = asyncio.ensure_future(
            run_hop(handler, self.bus, self.clock, "telemetry", client_id="telemetry")
        )

    async def end(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
            await asyncio.gather(self.tasks.pop(name), return_exceptions=True)

    def states(self, node: str) -> list[NodeStateChanged]:
        events = [decode_record(record).event for record in self.bus.records("node-states")]
        return [event for event in events if event.node == node]


def virtually(scenario):
    async def main(clock: VirtualClock):
        scene = Scene(clock)
        await scenario(scene)
        await scene.end(*list(scene.tasks))
        return scene

    return run_virtual(main, START_MS)


def test_nodes_appear_with_the_pools_cards_and_their_place():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.agent("n00", "n01")
        await scene.clock.sleep_wall(1)

    scene = virtually(scenario)
    (state,) = scene.states("n01")
    assert (len(state.gpus), state.gpu_model, state.order, state.health) == (8, "H100", 1, Health.USABLE)
    assert order_of("gpu-node-07", 3) == 7
    assert order_of("alpha", 3) == 3


def test_held_cards_are_busy_and_free_ones_idle():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.agent("n00")
        event = placed(1, assignment("a", 0, 1), assignment("app", 2, application=True))
        producer = scene.bus.producer("allocator")
        await producer.start()
        await producer.send(message(event, key="n00", id="1", source="/t", time_ms=0, partition=0))
        await scene.clock.sleep_wall(150)

    state = virtually(scenario).states("n00")[-1]
    used = [each.utilization_pct for each in state.gpus]
    assert min(used[:2]) > 80
    assert 30 < used[2] < 80
    assert used[3:] == [0.0] * 5


def test_a_dead_agents_node_is_suspect_lost_and_comes_back():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.agent("n00")
        scene.agent("n01")
        await scene.clock.sleep_wall(10)
        await scene.end("n01")
        await scene.clock.sleep_wall(80)
        scene.agent("n01")
        await scene.clock.sleep_wall(6)

    states = virtually(scenario).states("n01")
    healths = [(state.health.value, state.incarnation) for state in states]
    assert list(dict.fromkeys(healths)) == [("usable", 0), ("suspect", 0), ("lost", 0), ("usable", 1)]


def test_telemetry_that_was_dead_for_minutes_declares_nobody_lost():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.agent("n00", "n01")
        await scene.clock.sleep_wall(10)
        await scene.end("telemetry")
        await scene.clock.sleep_wall(600)
        scene.telemetry()
        await scene.clock.sleep_wall(60)

    scene = virtually(scenario)
    assert {state.health for node in ("n00", "n01") for state in scene.states(node)} == {Health.USABLE}


def test_a_sample_that_can_not_be_sent_is_dropped_and_the_next_one_goes_out():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.bus.fail_next_send("node-telemetry", Unknown.BEFORE_STORING)
        agent = scene.agent("n00")
        await scene.clock.sleep_wall(6)
        assert (agent.dropped, agent.sent) == (1, 1)

    assert len(virtually(scenario).states("n00")) == 1


def test_a_card_that_breaks_degrades_its_node_only():
    async def scenario(scene: Scene):
        scene.telemetry()
        scene.agent("n00", "n01")
        await scene.clock.sleep_wall(6)
        scene.source.errors["n00", 3] = "Xid 79"
        await scene.clock.sleep_wall(6)

    scene = virtually(scenario)
    assert [state.health.value for state in scene.states("n00")] == ["usable", "degraded"]
    assert [gpu.index for gpu in scene.states("n00")[-1].gpus if not gpu.healthy] == [3]
    assert {state.health for state in scene.states("n01")} == {Health.USABLE}
