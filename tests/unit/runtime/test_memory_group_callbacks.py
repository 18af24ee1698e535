"""A member's callbacks come one after the other, also when it is thrown out while one of them still runs."""

from __future__ import annotations

from services.runtime.bus.memory import MemoryBus
from services.runtime.virtual import VirtualClock, run_virtual


def test_a_member_expelled_during_its_assignment_finishes_it_before_the_next_one():
    async def main(clock: VirtualClock) -> list[str]:
        said: list[str] = []
        bus = MemoryBus({"t": 2}, clock=clock)

        async def assigned(partitions) -> None:
            said.append("assigned")
            await clock.sleep_wall(1.0)
            for partition in sorted(partitions):
                await member.seek(partition, 0)  # still its own: nothing changes under a running callback
            said.append("settled")

        async def revoked(partitions) -> None:
            said.append("revoked")

        member = bus.group_consumer("m", "g", ["t"], instance_id="m", on_assigned=assigned, on_revoked=revoked)
        starting = clock._loop.create_task(member.start())
        await clock.sleep_wall(0.5)
        bus.expel(member)
        polling = clock._loop.create_task(member.poll(max_records=1, timeout_s=10.0))
        await starting
        await polling
        await member.stop()
        return said

    said = run_virtual(main, 0)
    assert said[:3] == ["assigned", "settled", "revoked"]
    assert said[-2:] == ["assigned", "settled"]


def test_a_healed_bus_keeps_what_is_hidden_until_its_time_and_hides_nothing_more():
    from schemas.records import Message
    from services.runtime.bus.faults import FaultPlan, TopicFaults

    async def main(clock: VirtualClock) -> tuple[float, int, float]:
        late = TopicFaults(duplicate_share=1.0, duplicate_delay_s_max=5.0, fetch_delay_s_max=30.0)
        bus = MemoryBus({"t": 1}, clock=clock, faults=FaultPlan(seed=1, default=late))
        producer = bus.producer("p")
        await producer.start()
        await producer.send(Message("t", b"k", b"1"))
        bus.heal()
        hidden_until_s = bus.hidden_until_s()
        await producer.send(Message("t", b"k", b"2"))
        reader = bus.reader("r", [("t", 0)])
        await reader.start()
        found = 0
        while found < 2:
            found += len(await reader.poll(max_records=10, timeout_s=60.0))
        seen_at_s = clock.wall_s()
        await clock.sleep_wall(60.0)
        return hidden_until_s, len(bus.records("t")), seen_at_s

    hidden_until_s, stored, seen_at_s = run_virtual(main, 0)
    assert 0 < hidden_until_s <= 30
    assert abs(seen_at_s - hidden_until_s) < 0.01
    assert stored == 2
