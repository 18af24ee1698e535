"""Whatever is sent, delayed, doubled, trimmed, compacted or killed: a partition stays a log, and a group misses nothing."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import Message, Record
from services.runtime.bus.faults import FaultPlan, TopicFaults
from services.runtime.bus.memory import MemoryBus
from services.runtime.bus.memory_group import assign_by_range
from services.runtime.bus.memory_log import PartitionLog
from services.runtime.bus.port import CommitRefusedError, OffsetGoneError, SendUnknownError
from services.runtime.hop import next_offsets
from services.runtime.virtual import VirtualClock, run_virtual

START_MS = 1_800_000_000_000

shares = st.floats(0, 0.4)
faults = st.builds(
    TopicFaults,
    duplicate_share=shares,
    duplicate_delay_s_max=st.floats(0.1, 5),
    send_delay_s_max=st.floats(0, 1),
    fetch_share=st.floats(0, 1),
    fetch_delay_s_max=st.floats(0, 2),
    unknown_before_share=st.floats(0, 0.3),
    unknown_after_share=st.floats(0, 0.3),
)

operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([b"a", b"b", b"c", None])),
        st.tuples(st.just("tombstone"), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("trim"), st.integers(0, 40)),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 45)),
    ),
    max_size=60,
)


@given(operations)
def test_a_partition_equals_a_list_of_offsets(steps: list[tuple]):
    log = PartitionLog("t", 0)
    model: dict[int, tuple[bytes | None, bytes | None]] = {}
    start = end = 0
    for what, argument in steps:
        if what in ("append", "tombstone"):
            value = None if what == "tombstone" else b"v"
            assert log.append(argument, value, (), 0) == end
            model[end] = (argument, value)
            end += 1
        elif what == "trim":
            log.trim(argument)
            start = max(start, min(argument, end))
            model = {offset: item for offset, item in model.items() if offset >= start}
        elif what == "compact":
            log.compact(drop_tombstones=argument)
            newest = {key: offset for offset, (key, _) in model.items()}
            model = {
                offset: (key, value)
                for offset, (key, value) in model.items()
                if offset == end - 1 or key is None or (newest[key] == offset and not (argument and value is None))
            }
        elif start <= argument <= end:
            expected = [offset for offset in sorted(model) if offset >= argument]
            assert [record.offset for record in log.read(argument, 5, 0.0)] == expected[:5]
        else:
            try:
                log.read(argument, 5, 0.0)
            except OffsetGoneError:
                continue
            raise AssertionError("an offset outside the log was read")
    assert (log.start, log.end) == (start, end)
    assert [(record.offset, record.key, record.value) for record in log.records()] == [
        (offset, *model[offset]) for offset in sorted(model)
    ]


@given(
    st.integers(1, 12),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 9), min_size=1, max_size=3),
)
def test_range_assignment_gives_every_partition_to_exactly_one_member(member_count: int, counts: dict[str, int]):
    owned = assign_by_range({f"m{index:02d}": tuple(counts) for index in range(member_count)}, counts)
    everything = [partition for partitions in owned.values() for partition in partitions]
    assert sorted(everything) == sorted((topic, part) for topic, count in counts.items() for part in range(count))
    sizes = [len([part for topic, part in partitions if topic == next(iter(counts))]) for partitions in owned.values()]
    assert max(sizes) - min(sizes) <= 1


async def _deliver(clock: VirtualClock, plan: FaultPlan, kills: list[float]) -> tuple[list[int], list[Record], int]:
    bus = MemoryBus({"t": 3}, clock=clock, faults=plan, session_timeout_s=1)
    acknowledged: list[int] = []

    async def publish() -> None:
        producer = bus.producer("p")
        await producer.start()
        for number in range(40):
            try:
                await producer.send(Message("t", b"k", b"%d" % number, (), number % 3))
                acknowledged.append(number)
            except SendUnknownError:
                producer = bus.producer("p")
                await producer.start()
            await clock.sleep_wall(0.05)

    seen: list[Record] = []

    async def consume(member) -> None:
        await member.start()
        while True:
            records = await member.poll(max_records=4, timeout_s=5)
            await clock.sleep_wall(0.02)
            seen.extend(records)
            if records:
                try:
                    await member.commit(next_offsets(records))
                except CommitRefusedError:
                    continue

    publishing = asyncio.create_task(publish())
    steady = asyncio.create_task(consume(bus.group_consumer("steady", "g", ["t"])))
    for number, after_s in enumerate(kills):
        member = bus.group_consumer(f"c{number}", "g", ["t"])
        task = asyncio.create_task(consume(member))
        await clock.sleep_wall(after_s)
        bus.kill(member)
        task.cancel()
    await publishing
    await clock.sleep_wall(60)
    assert not steady.done()
    return acknowledged, seen, len(bus.records("t"))


@settings(max_examples=40, deadline=None)
@given(faults, st.integers(0, 2**32), st.lists(st.floats(0.01, 1.0), max_size=5))
def test_a_group_under_faults_and_kills_sees_every_acknowledged_record_the_same_way_twice(
    topic_faults: TopicFaults, seed: int, kills: list[float]
):
    plan = FaultPlan(seed=seed, default=topic_faults)
    first = run_virtual(lambda clock: _deliver(clock, plan, kills), START_MS)
    acknowledged, seen, stored = first
    assert set(acknowledged) <= {int(record.value or b"-1") for record in seen}
    assert len({(record.partition, record.offset) for record in seen}) == stored
    assert run_virtual(lambda clock: _deliver(clock, plan, kills), START_MS) == first
