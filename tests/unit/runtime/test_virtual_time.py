"""The virtual loop jumps, keeps order, refuses the real world; the virtual clock reads exactly what was slept."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic

import pytest

from services.runtime.virtual import VirtualClock, VirtualDeadlockError, run_virtual

START_MS = 1_800_000_000_000


def test_a_day_of_sleep_takes_no_time_and_reads_exactly_a_day():
    async def main(clock: VirtualClock) -> tuple[int, int, float]:
        await clock.sleep_wall(86_400)
        return clock.now_ms(), clock.wall_ms(), clock.wall_s()

    began = monotonic()
    assert run_virtual(main, START_MS) == (START_MS + 86_400_000, START_MS + 86_400_000, 86_400.0)
    assert monotonic() - began < 5


def test_every_millisecond_slept_until_is_read_exactly():
    async def main(clock: VirtualClock) -> list[int]:
        seen = []
        for ms in range(1, 3000, 7):
            await clock.sleep_until(START_MS + ms)
            seen.append(clock.now_ms() - START_MS)
        return seen

    assert run_virtual(main, START_MS) == list(range(1, 3000, 7))


def test_sleep_until_the_past_returns_at_once():
    async def main(clock: VirtualClock) -> float:
        await clock.sleep_until(START_MS - 1)
        return clock.wall_s()

    assert run_virtual(main, START_MS) == 0.0


def test_speed_moves_domain_time_faster_than_wall_time():
    async def main(clock: VirtualClock) -> tuple[int, int]:
        await clock.sleep_until(START_MS + 3_600_000)
        return clock.now_ms() - START_MS, clock.wall_ms() - START_MS

    assert run_virtual(main, START_MS, speed=720.0) == (3_600_000, 5_000)


def test_skewed_clocks_share_one_time_and_differ_by_a_constant():
    async def main(clock: VirtualClock) -> list[int]:
        late = clock.skewed(domain_ms=-1_500, wall_ms=40)
        await clock.sleep_wall(10)
        return [late.now_ms() - clock.now_ms(), late.wall_ms() - clock.wall_ms(), int(late.wall_s() - clock.wall_s())]

    assert run_virtual(main, START_MS) == [-1_500, 40, 0]


def test_sleepers_wake_in_the_order_of_their_moments_and_twice_the_same():
    async def main(clock: VirtualClock) -> list[tuple[int, int]]:
        woken: list[tuple[int, int]] = []

        async def sleeper(number: int) -> None:
            for turn in range(20):
                await clock.sleep_wall(((number * 7919 + turn * 104729) % 997) / 100)
                woken.append((clock.now_ms(), number))

        await asyncio.gather(*(sleeper(number) for number in range(30)))
        return woken

    first = run_virtual(main, START_MS)
    assert first == run_virtual(main, START_MS)
    assert [when for when, _ in first] == sorted(when for when, _ in first)


def test_waiting_for_nothing_is_an_error_instead_of_a_hang():
    async def main(clock: VirtualClock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(VirtualDeadlockError, match="no timer is left"):
        run_virtual(main, START_MS)


def test_timeouts_run_on_virtual_time():
    async def main(clock: VirtualClock) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout=3_000)
        return clock.wall_s()

    assert run_virtual(main, START_MS) == pytest.approx(3_000, abs=1e-6)


def test_threads_and_sockets_are_refused():
    async def threads(clock: VirtualClock) -> None:
        await asyncio.to_thread(print)

    async def sockets(clock: VirtualClock) -> None:
        left, right = socket.socketpair()
        with left, right:
            asyncio.get_running_loop().add_reader(left, print)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(threads, START_MS)
    with pytest.raises(RuntimeError, match="no sockets"):
        run_virtual(sockets, START_MS)


def test_tasks_left_behind_are_cancelled_and_errors_come_out():
    ended = []

    async def endless() -> None:
        try:
            while True:
                await asyncio.sleep(1)
        finally:
            ended.append("cancelled")

    async def main(clock: VirtualClock) -> None:
        task = asyncio.create_task(endless())
        await asyncio.sleep(5)
        assert not task.done()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(main, START_MS)
    assert ended == ["cancelled"]


def test_a_domain_speed_of_nothing_is_refused():
    with pytest.raises(ValueError, match="positive"):
        run_virtual(lambda clock: clock.sleep_wall(0), START_MS, speed=0)


def test_waiting_for_a_rounding_error_moves_time() -> None:
    """Two loops that each wait for the rest of an uneven tick must not keep each other busy at one moment for ever."""

    async def ticker(clock: VirtualClock, period_s: float) -> int:
        ticks, due_s = 0, clock.wall_s() + period_s
        for _ in range(100_000):
            await asyncio.sleep(max(0.0, due_s - clock.wall_s()))
            if clock.wall_s() >= due_s:
                ticks, due_s = ticks + 1, clock.wall_s() + period_s
            if ticks == 1_000:
                return ticks
        raise AssertionError("time stood still")

    async def main(clock: VirtualClock) -> list[int]:
        return await asyncio.gather(*(ticker(clock, 0.1 + share / 7) for share in range(3)))

    assert run_virtual(main, 0) == [1_000, 1_000, 1_000]
