"""Cutting the cards of a shared machine: only when they are empty, told in any case, and never left in between by a death or a hang."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.catalog import SlotKind, Slots
from schemas.executions import CardsShaped, JobStarted
from schemas.placements import Assignment, NodePlaced, Reshape
from schemas.sharing import CUT_WAIT_S
from services.executor.shell.cards import MEASURE_WAIT_S
from services.executor.shell.drivers.cutting import CutError, NvidiaCutter, SharedMachine
from services.executor.shell.drivers.environment import Site, SlotShare, environment_of
from services.executor.shell.shared_machine import device_names
from services.runtime.virtual import VirtualClock, run_virtual
from tests.unit.executor.executor_rig import START_MS, Rig, assignment, placed

WHOLE, HALF, MPS = "h100", "h100-half", "h100-quarter"
HALVES = f"n00+{HALF}"
MACHINE = SharedMachine(
    name="n00",
    cards=2,
    whole=WHOLE,
    slots={HALF: Slots(of=WHOLE, kind=SlotKind.MIG, per_card=2, profile="3g.40gb")},
)


def simulated(main: Callable[[VirtualClock], Awaitable[None]]) -> Callable[[], None]:
    """A test on a virtual clock."""

    def test() -> None:
        run_virtual(main, START_MS, speed=1.0)

    test.__name__ = main.__name__
    return test


class TrueCards:
    """What the cards really are, whatever becomes of executors."""

    def __init__(self, clock: VirtualClock) -> None:
        self.pools = [WHOLE, WHOLE]
        self.clock = clock
        self.cuts = 0
        self.fails = ""
        self.hangs = self.silent = False

    async def cut(self, cards: Sequence[int], pool: str) -> None:
        self.cuts += 1
        for card in cards:
            await self.clock.sleep_wall(10.0)
            if self.hangs:
                await asyncio.Event().wait()
            if self.fails:
                raise CutError(f"card {card}: {self.fails}")
            self.pools[card] = pool

    async def measured(self, card: int, likely: Sequence[str]) -> str | None:
        if self.silent:
            await asyncio.Event().wait()
        return self.pools[card]


def rig_of(clock: VirtualClock) -> tuple[Rig, TrueCards]:
    rig = Rig(clock, nodes=("n00", HALVES))
    rig.shared, rig.cutter = MACHINE, TrueCards(clock)
    return rig, rig.cutter


def asked(sequence: int, *assignments: Assignment, request: str = "p1", cards: tuple[int, ...] = (0, 1)) -> NodePlaced:
    reshape = Reshape(request_id=request, cards=list(cards), pool=HALF)
    return replace(placed(sequence, *assignments), reshape=reshape)


def halves(sequence: int, *assignments: Assignment) -> NodePlaced:
    return replace(placed(sequence, *assignments, node=HALVES), pool=HALF)


def words(rig: Rig) -> list[tuple[list[str], str | None, str]]:
    return [(said.pools, said.request_id, said.detail) for said in rig.events(CardsShaped)]


@simulated
async def test_cards_are_cut_when_the_last_run_has_left_them_and_then_slots_start(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    await rig.start()
    assert words(rig) == [([WHOLE, WHOLE], None, "")]
    await rig.place(asked(1, assignment("w", 1, run_s=100.0)), halves(1, assignment("h", 3, run_s=50.0)))
    await rig.wait_s(60)
    assert (cards.cuts, rig.said("h")) == (0, [])
    await rig.wait_s(100)
    assert (cards.pools, words(rig)[-1]) == ([HALF, HALF], ([HALF, HALF], "p1", ""))
    assert rig.said("h")[0] == "started"
    revisions = [said.revision for said in rig.events(CardsShaped)]
    assert revisions == sorted(set(revisions))
    await rig.leave()


@simulated
async def test_nothing_begins_on_a_card_while_it_is_cut_nor_on_one_of_another_pool(clock: VirtualClock) -> None:
    rig, _ = rig_of(clock)
    await rig.start()
    await rig.place(asked(1, cards=(0,)))
    await rig.wait_s(5)
    await rig.place(placed(2, assignment("w", 0), assignment("v", 1)), halves(2, assignment("h", 0)))
    await rig.wait_s(1)
    assert (rig.said("w"), rig.said("v"), rig.said("h")) == ([], ["started"], [])
    await rig.wait_s(20)
    assert (rig.said("w"), rig.said("h")[:1]) == ([], ["started"])
    await rig.leave()


@simulated
async def test_a_cut_that_fails_or_hangs_is_told_and_the_cards_are_what_they_were(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    cards.fails = "In use by another client"
    await rig.start()
    await rig.place(asked(1))
    await rig.wait_s(30)
    assert words(rig)[-1] == ([WHOLE, WHOLE], "p1", "card 0: In use by another client")
    cards.fails, cards.hangs = "", True
    await rig.place(asked(2, request="p2"))
    await rig.wait_s(CUT_WAIT_S + 5)
    assert words(rig)[-1] == ([WHOLE, WHOLE], "p2", f"not finished within {CUT_WAIT_S:.0f} s")
    await rig.place(placed(3, assignment("w", 0)))
    await rig.wait_s(1)
    assert rig.said("w") == ["started"]
    await rig.leave()


@simulated
async def test_a_card_that_is_silent_after_a_broken_cut_is_nobodys_until_it_is_cut_again(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    await rig.start()
    cards.hangs = cards.silent = True
    await rig.place(asked(1, cards=(1,)))
    await rig.wait_s(CUT_WAIT_S + 2 * MEASURE_WAIT_S + 15)
    assert words(rig)[-1] == ([WHOLE, ""], "p1", f"not finished within {CUT_WAIT_S:.0f} s")
    await rig.place(placed(2, assignment("v", 0), assignment("w", 1)), halves(2, assignment("h", 2)))
    await rig.wait_s(1)
    assert (rig.said("v"), rig.said("w"), rig.said("h")) == (["started"], [], [])
    cards.hangs = cards.silent = False
    await rig.place(asked(3, assignment("v", 0), request="p2", cards=(1,)), halves(3, assignment("h", 2)))
    await rig.wait_s(20)
    assert (words(rig)[-1], rig.said("h")) == (([WHOLE, HALF], "p2", ""), ["started"])
    await rig.leave()


@simulated
async def test_half_done_the_cards_are_what_they_measure_to_be(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    await rig.start()
    await rig.place(asked(1))
    await rig.wait_s(15)
    cards.fails = "Insufficient resources"
    await rig.wait_s(10)
    assert words(rig)[-1] == ([HALF, WHOLE], "p1", "card 1: Insufficient resources")
    await rig.place(placed(2, assignment("w", 1)), halves(2, assignment("h", 0, 1)))
    await rig.wait_s(1)
    assert (rig.said("w"), rig.said("h")) == (["started"], ["started"])
    await rig.leave()


@pytest.mark.parametrize(
    ("at_s", "found", "detail"),
    [(5, [WHOLE, WHOLE], True), (15, [HALF, WHOLE], True), (20.5, [HALF, HALF], False)],
)
def test_an_executor_that_dies_in_the_middle_measures_and_says_so(at_s: float, found: list[str], detail: bool) -> None:
    @simulated
    async def played(clock: VirtualClock) -> None:
        rig, cards = rig_of(clock)
        await rig.start()
        await rig.place(asked(1))
        await rig.wait_s(at_s)
        await rig.crash()
        await rig.start()
        told = [word for word in words(rig) if word[1] == "p1"]
        assert told[-1][0] == found
        assert bool(told[-1][2]) is detail
        await rig.wait_s(60)
        assert cards.cuts == 1, "it is not tried again by itself"
        await rig.place(placed(2), asked(3, request="p2"))
        await rig.wait_s(60)
        assert words(rig)[-1] == ([HALF, HALF], "p2", "")
        await rig.leave()

    played()


@simulated
async def test_an_order_that_was_answered_is_answered_again_and_not_carried_out_again(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    await rig.start()
    await rig.place(asked(1))
    await rig.wait_s(30)
    said = len(words(rig))
    await rig.place(asked(2))
    await rig.wait_s(30)
    assert (cards.cuts, len(words(rig))) == (1, said + 1)
    assert words(rig)[-1] == ([HALF, HALF], "p1", "")
    await rig.leave()


@simulated
async def test_a_machine_that_lost_its_instances_by_a_restart_says_how_it_found_its_cards(clock: VirtualClock) -> None:
    rig, cards = rig_of(clock)
    await rig.start()
    await rig.place(asked(1))
    await rig.wait_s(30)
    await rig.crash()
    cards.pools = [WHOLE, ""]
    await rig.start()
    assert words(rig)[-1][0] == [WHOLE, ""]
    assert "otherwise" in words(rig)[-1][2]
    await rig.place(placed(2, assignment("w", 0), assignment("v", 1)))
    await rig.wait_s(1)
    assert (rig.said("w"), rig.said("v")) == (["started"], [])
    await rig.leave()


@simulated
async def test_an_order_for_cards_or_pools_that_are_not_there_is_answered(clock: VirtualClock) -> None:
    rig, _ = rig_of(clock)
    await rig.start()
    await rig.place(asked(1, cards=(7,)))
    await rig.wait_s(1)
    assert words(rig)[-1][1] == "p1"
    assert "no such card" in words(rig)[-1][2]
    await rig.leave()


@simulated
async def test_every_job_starts_once_through_a_cut(clock: VirtualClock) -> None:
    rig, _ = rig_of(clock)
    await rig.start()
    await rig.place(asked(1), halves(1, *[assignment(f"h{slot}", slot) for slot in range(4)]))
    await rig.wait_s(30)
    assert sorted(event.job_id for event in rig.events(JobStarted)) == ["h0", "h1", "h2", "h3"]
    await rig.leave()


# --- devices and programs


def test_a_share_of_mps_gets_its_card_its_memory_and_its_daemon() -> None:
    share = SlotShare(per_card=4, memory_mib=20_000, threads_pct=30, mps_dir="/run/mps")
    node = f"n00+{MPS}"
    site = Site(nodes=("n00", node), uuids={node: ("GPU-a",) * 4 + ("GPU-b",) * 4}, shares={node: share})
    found = environment_of(node, assignment("j", 6, 7), Path("/runs"), site, {})
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps/1"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20000M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert (found["LOCAL_WORLD_SIZE"], found["GPUGRID_SLOTS"]) == ("2", "6,7")


def test_a_job_cannot_choose_its_own_share() -> None:
    share = SlotShare(per_card=2, memory_mib=40_000, mps_dir="/run/mps")
    site = Site(nodes=("n00",), shares={HALVES: share})
    wish = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G", "CUDA_VISIBLE_DEVICES": "0,1"}
    found = environment_of(HALVES, assignment("j", 2, environment=wish), Path("/runs"), site, {})
    assert (found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], found["CUDA_VISIBLE_DEVICES"]) == ("0=40000M", "1")
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


class NvmlWithMig:
    """Two cards; `mig` are their instances."""

    class NVMLError(Exception):
        pass

    def __init__(self, *mig: list[str]) -> None:
        self.mig = mig

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (int(bool(self.mig[handle])), 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> tuple[int, int]:  # noqa: N802
        if index >= len(self.mig[handle]):
            raise self.NVMLError
        return handle, index

    def nvmlDeviceGetName(self, device: tuple[int, int]) -> str:  # noqa: N802
        return f"NVIDIA H100 80GB HBM3 MIG {self.mig[device[0]][device[1]]}"

    def nvmlDeviceGetUUID(self, device: tuple[int, int]) -> str:  # noqa: N802
        return f"MIG-{device[0]}-{device[1]}"


def test_slots_of_mig_are_the_devices_the_card_has_now_and_none_where_it_is_whole() -> None:
    site = Site(nodes=("n00",), uuids={"n00": ("GPU-a", "GPU-b")}, shares={HALVES: SlotShare(per_card=2, memory_mib=1)})
    device_names(MACHINE, site, ("GPU-a", "GPU-b"), NvmlWithMig([], ["3g.40gb", "3g.40gb"]))([WHOLE, HALF])
    assert site.visible(HALVES, [2]) == "MIG-1-0"
    assert site.visible(HALVES, [2, 3]) == "MIG-1-0,MIG-1-1"
    assert site.visible(HALVES, [0]) == ""


def test_a_card_is_measured_by_the_instances_it_has(tmp_path: Path) -> None:
    async def measured(*mig: list[str], believed: str = WHOLE) -> str | None:
        return await NvidiaCutter(MACHINE, tmp_path, nvml=NvmlWithMig(*mig)).measured(0, [believed])

    assert asyncio.run(measured(["3g.40gb", "3g.40gb"])) == HALF
    assert asyncio.run(measured(["3g.40gb"])) == ""
    assert asyncio.run(measured([], believed=HALF)) == WHOLE


def test_a_card_with_a_daemon_is_of_the_likeliest_pool_that_has_daemons(tmp_path: Path) -> None:
    machine = replace(MACHINE, slots={**MACHINE.slots, MPS: Slots(of=WHOLE, kind=SlotKind.MPS, per_card=4)})
    cutter = NvidiaCutter(machine, tmp_path, nvml=NvmlWithMig([]))
    folder = cutter.mps_dir(0)
    folder.mkdir()
    assert asyncio.run(cutter.measured(0, [WHOLE, MPS])) == WHOLE
    (folder / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    assert asyncio.run(cutter.measured(0, [WHOLE, MPS])) == MPS
    assert asyncio.run(cutter.measured(0, [MPS, HALF])) == MPS
    assert asyncio.run(cutter.measured(0, [WHOLE])) == WHOLE


def test_what_a_sites_program_left_half_done_cannot_be_told(tmp_path: Path) -> None:
    cutter = NvidiaCutter(MACHINE, tmp_path, command=_program(tmp_path, "exit 1"))
    assert asyncio.run(cutter.measured(0, [HALF, WHOLE])) is None


def _program(folder: Path, text: str) -> str:
    path = folder / "cut"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_site_may_bring_its_own_program(tmp_path: Path) -> None:
    said = tmp_path / "said"
    cutter = NvidiaCutter(MACHINE, tmp_path, command=_program(tmp_path, f'echo "$@" >> {said}'))
    asyncio.run(cutter.cut([1], HALF))
    asyncio.run(cutter.cut([0], WHOLE))
    assert said.read_text().splitlines() == ["1 mig 2 3g.40gb", "0 whole 1 "]


def test_a_program_that_fails_is_quoted_and_one_that_hangs_is_killed(tmp_path: Path) -> None:
    failing = NvidiaCutter(MACHINE, tmp_path, command=_program(tmp_path, "echo In use by another client; exit 19"))
    with pytest.raises(CutError, match=r"card 1: .* ended with 19: In use by another client"):
        asyncio.run(failing.cut([1], HALF))
    pid = tmp_path / "pid"
    hanging = NvidiaCutter(MACHINE, tmp_path, command=_program(tmp_path, f"echo $$ > {pid}; exec sleep 600"))

    async def given_up() -> None:
        cutting = asyncio.ensure_future(hanging.cut([1], HALF))
        while not (pid.exists() and pid.read_text().strip()):
            assert not cutting.done()
            await asyncio.sleep(0.01)
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)

    asyncio.run(given_up())
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
