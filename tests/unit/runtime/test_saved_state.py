"""A handler's state on disk: a restart reads what came since, and believes no file that isn't of this code and these topics."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from schemas.records import Mark, Message, Now, Record
from services.runtime import saved_state
from services.runtime.bus.memory import MemoryBus
from services.runtime.hop import SETTLED_AT_ONCE_MAX, Rebuilder
from services.runtime.saved_state import SavedState
from services.runtime.virtual import VirtualClock, run_virtual

START_MS = 1_800_000_000_000
TOPICS = {"in": 3}


class Counting:
    """Counts what it was given, per key. `seen`: records this object folded itself."""

    inputs = ("in",)
    rebuilt_from = ("in",)

    def __init__(self, made: bytes = b"alike") -> None:
        self.made = made
        self.counts: dict[bytes, int] = {}
        self.folded: dict[tuple[str, int], Mark] = {}
        self.seen = 0

    def recover(self, record: Record) -> None:
        assert record.key is not None
        self.seen += 1
        self.counts[record.key] = self.counts.get(record.key, 0) + 1
        self.folded[record.topic, record.partition] = Mark(record.offset, record.timestamp_ms)

    def handle(self, record: Record, now: Now) -> list[Message]:
        self.recover(record)
        return []

    def tick(self, now: Now) -> list[Message]:
        return []

    def made_with(self) -> bytes:
        return self.made

    def marks(self) -> dict[tuple[str, int], Mark]:
        return self.folded

    def state(self) -> object:
        return self.counts, self.folded

    def use_state(self, state) -> None:
        self.counts, self.folded = state


async def publish(bus: MemoryBus, first: int, last: int) -> None:
    producer = bus.producer("upstream")
    await producer.start()
    for number in range(first, last):
        await producer.send(Message("in", b"key-%d" % (number % 7), b"x", (), number % 3))
    await producer.stop()


async def rebuilt(bus: MemoryBus, path: Path, made: bytes = b"alike") -> Counting:
    """A fresh handler, as after a start."""
    handler = Counting(made)
    rebuilder = Rebuilder(bus, handler, "hop", SavedState(path, handler))
    await rebuilder.catch_up()
    await rebuilder.stop()
    return handler


def save(handler: Counting, path: Path) -> None:
    saved = SavedState(path, handler)
    assert saved.save()
    saved.wait()


def virtually(main: Callable[[MemoryBus, VirtualClock], Awaitable[None]]) -> None:
    async def with_bus(clock: VirtualClock) -> None:
        await main(MemoryBus(TOPICS, clock=clock), clock)

    run_virtual(with_bus, START_MS)


def test_a_restart_reads_only_what_came_since_and_knows_all(tmp_path: Path) -> None:
    path = tmp_path / "state"

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        await publish(bus, 0, 90)
        first = await rebuilt(bus, path)
        assert first.seen == 90
        save(first, path)
        await publish(bus, 90, 100)
        second, all_read = await rebuilt(bus, path), await rebuilt(bus, tmp_path / "none")
        assert (second.seen, all_read.seen) == (10, 100)
        assert (second.counts, second.folded) == (all_read.counts, all_read.folded)

    virtually(main)


def test_what_is_saved_is_the_state_of_that_moment(tmp_path: Path) -> None:
    """The child has the state to itself, whatever the handler does meanwhile."""
    handler = Counting()
    handler.counts = {b"%d" % number: number for number in range(100_000)}
    saved = SavedState(tmp_path / "state", handler)
    assert saved.save()
    handler.counts.clear()
    assert not saved.save(), "one child at a time"
    saved.wait()
    (_, (counts, _)) = content(tmp_path / "state")
    assert len(counts) == 100_000
    assert [left.name for left in tmp_path.iterdir()] == ["state"]


def test_what_is_kept_back_is_folded_before_a_rebuild_ends_and_others_have_their_turns(tmp_path: Path) -> None:
    class KeepsBack(Counting):
        kept_back = 0

        def recover(self, record: Record) -> None:
            super().recover(record)
            self.kept_back += 1

        def settle(self, records_max: int) -> None:
            pieces.append(records_max)
            self.kept_back -= records_max

    pieces: list[int] = []
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(len(pieces))
            await asyncio.sleep(0)

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        await publish(bus, 0, 3 * SETTLED_AT_ONCE_MAX + 1)
        handler = KeepsBack()
        rebuilder = Rebuilder(bus, handler, "hop")
        other = asyncio.ensure_future(others())
        assert await rebuilder.catch_up() == 3 * SETTLED_AT_ONCE_MAX + 1
        other.cancel()
        await rebuilder.stop()
        assert pieces == 3 * [SETTLED_AT_ONCE_MAX]
        assert {1, 2} <= set(turns)
        assert handler.kept_back == 1, "few are folded when they are needed"

    virtually(main)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def content(path: Path) -> tuple:
    """Both parts of the file."""
    with path.open("rb") as file:
        return pickle.load(file), pickle.load(file)


def rewritten(path: Path, fingerprint: str, marks: dict[tuple[str, int], Mark], counts: object) -> None:
    path.write_bytes(pickle.dumps((fingerprint, marks)) + pickle.dumps((counts, marks)))


def of_other_code(path: Path) -> None:
    (fingerprint, marks), (counts, _) = content(path)
    rewritten(path, fingerprint[::-1], marks, counts)


def of_a_longer_topic(path: Path) -> None:
    (fingerprint, marks), (counts, _) = content(path)
    rewritten(path, fingerprint, marks | {("in", 1): Mark(1_000, START_MS)}, counts)


def of_another_topic(path: Path) -> None:
    """Kafka's data were removed, and as many records have been written again."""
    (fingerprint, marks), (counts, _) = content(path)
    rewritten(path, fingerprint, marks | {("in", 1): Mark(marks["in", 1].offset, START_MS - 1)}, counts)


@pytest.mark.parametrize("spoil", [damaged, of_other_code, of_a_longer_topic, of_another_topic, Path.unlink])
def test_a_file_that_may_not_be_believed_costs_time_and_nothing_else(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "state"

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        await publish(bus, 0, 90)
        first = await rebuilt(bus, path)
        save(first, path)
        spoil(path)
        second = await rebuilt(bus, path)
        assert (second.seen, second.counts) == (90, first.counts)

    virtually(main)


def test_an_instance_that_joins_begins_with_what_the_newest_one_beside_it_knows(tmp_path: Path) -> None:
    paths = [tmp_path / name / "state" for name in ("a", "b", "joins")]

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        for number, path in enumerate(paths):
            path.parent.mkdir()
            await publish(bus, 30 * number, 30 * (number + 1))
            if path is not paths[-1]:
                save(await rebuilt(bus, path), path)
                os.utime(path, (number, number))
        joined = await rebuilt(bus, paths[-1])
        assert (joined.seen, sum(joined.counts.values())) == (30, 90)
        damaged(paths[1])
        assert (await rebuilt(bus, paths[-1])).seen == 60, "the next newest"

    virtually(main)


def test_a_handler_made_with_other_things_reads_everything(tmp_path: Path) -> None:
    path = tmp_path / "state"

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        await publish(bus, 0, 30)
        save(await rebuilt(bus, path), path)
        assert (await rebuilt(bus, path, b"otherwise")).seen == 30
        assert (await rebuilt(bus, path)).seen == 0

    virtually(main)


def test_a_child_that_can_not_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    handler = Counting()
    handler.counts = {b"old": 1}
    saved = SavedState(tmp_path / "state", handler)
    assert saved.save()
    saved.wait()
    before = (tmp_path / "state").read_bytes()
    handler.counts = {b"new": lambda: None}  # type: ignore[dict-item]  # nothing that can be pickled
    assert saved.save()
    saved.wait()
    assert [left.name for left in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == before
    handler.counts = {b"newest": 2}
    assert saved.save()
    saved.wait()
    assert content(tmp_path / "state")[1][0] == {b"newest": 2}


def test_where_no_child_can_be_made_the_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    saved = SavedState(tmp_path / "state", Counting())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", none)
        assert not saved.save()
    assert saved.save()
    saved.wait()


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Counting):
        def state(self) -> object:
            while True:
                pass

    saved = SavedState(tmp_path / "state", Slow())
    assert saved.save()
    monkeypatch.setattr(saved_state, "SAVE_WAIT_S", -1.0)
    while saved.busy():
        os.sched_yield()
    assert not (tmp_path / "state").exists()


def test_what_a_dead_child_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    (tmp_path / "state.123.new").write_bytes(b"half")

    async def main(bus: MemoryBus, clock: VirtualClock) -> None:
        await publish(bus, 0, 3)
        await rebuilt(bus, path)
        assert not any(tmp_path.iterdir())

    virtually(main)
