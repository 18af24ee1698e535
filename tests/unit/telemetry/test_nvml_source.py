"""Reading cards through a compiled libnvidia-ml that fails as real ones do: one card's failure is its own, nothing hangs us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from schemas.nodes import RemappedRows, XidReport
from services.telemetry.shell import nvml
from services.telemetry.shell.agent import PERIOD_S
from services.telemetry.shell.nvml import NvmlSource
from services.telemetry.shell.source import SourceError
from tests.nvml.fake_cards import GIB, STATE_VARIABLE, FakeCards, built, let_go, load_into_this_process

ROOT = Path(__file__).parents[3]
XID_NUMBERS = iter(range(1, 1000))
"""The library hands each number out once in a process's life."""


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    cards = FakeCards(tmp_path)
    load_into_this_process(cards.path)
    let_go()
    yield cards
    let_go()


async def read(source: NvmlSource):
    return (await source.read("n00")).gpus


async def test_a_card_is_read_with_everything_it_has(cards: FakeCards) -> None:
    cards.processes = {0: [(os.getpid(), 2 * GIB)]}
    cards.change(0, ecc_corr=5, ecc_unc=1, rows="3 1 1 0", throttles=0x4 | 0x40 | 0x1, recovery=1)
    source = NvmlSource()
    card, other = await read(source)
    assert (source.name, source.driver) == ("nvml", "580.00.00")
    assert (card.model, card.uuid) == ("NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000000")
    assert (card.memory_total_mib, card.memory_used_mib) == (141 * 1024, 60 * 1024), "without the driver's reserve"
    assert (card.utilization_pct, card.temperature_c, card.power_w, card.power_limit_w) == (87.0, 61.0, 550.5, 700.0)
    assert (card.energy_j, card.sm_clock_mhz, card.memory_clock_mhz) == (1000.0, 1755.0, 3201.0)
    assert card.throttles == ["sw_power_cap", "hw_thermal_slowdown"], "idle clocks are no throttling"
    assert (card.ecc_corrected, card.ecc_uncorrected) == (5.0, 1.0)
    assert card.remapped_rows == RemappedRows(correctable=3, uncorrectable=1, pending=True)
    assert card.recovery_action == "reset_gpu"
    assert (card.nvlinks_up, card.nvlink_tx_bytes, card.nvlink_rx_bytes) == (18, 1024 * 1024.0, 2048 * 1024.0)
    assert (card.pcie_tx_bytes, card.pcie_rx_bytes, card.pcie_replays) == (5000.0, 6000.0, 3.0)
    assert [(one.pid, one.memory_mib) for one in card.processes] == [(os.getpid(), 2048)]
    assert (card.mig, card.error, other.error) == (False, None, None)


async def test_topology_comes_with_the_first_reading_only(cards: FakeCards) -> None:
    cards.facts[2] = dict(cards.facts[0], nvlink="0 0 0 0", numa=0xFFFFFFFF)
    cards.write()
    source = NvmlSource()
    topology = (await source.read("n00")).topology
    assert topology is not None
    assert (topology.nvlink_domains, topology.numa_nodes) == ([[0, 1], [2]], [0, 0, -1])
    assert (await source.read("n00")).topology is None


@pytest.fixture
def llama() -> Iterator[subprocess.Popen[bytes]]:
    """A process as the executor starts them."""
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], env={"GPUGRID_JOB_ID": "llama-7"}, stdin=subprocess.PIPE
    )
    yield child
    child.communicate(b"\n")


async def test_a_process_is_told_with_the_job_that_its_environment_names(cards: FakeCards, llama) -> None:
    cards.processes = {0: [(llama.pid, GIB), (999_999_999, GIB)]}
    cards.write()
    (card, _) = await read(NvmlSource())
    assert [one.job_id for one in card.processes] == ["llama-7", None]


async def test_eight_cards_cost_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    cards = FakeCards(tmp_path, 8)
    cards.processes = {index: [(os.getpid(), GIB), (77, GIB)] for index in range(8)}
    cards.write()
    load_into_this_process(cards.path)
    let_go()
    source = NvmlSource()
    await read(source)
    begun_s, readings = time.process_time(), 20
    for _ in range(readings):
        await read(source)
    used_s = (time.process_time() - begun_s) / readings
    let_go()
    print(f"{used_s * 1000:.1f} ms of a processor per reading of eight cards, {used_s / PERIOD_S:.3%} of a core")
    assert used_s < 0.01 * PERIOD_S


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, 999])
async def test_a_field_that_a_card_can_not_tell_is_missing(cards: FakeCards, code: int) -> None:
    calls = (
        "PowerUsage",
        "UtilizationRates",
        "TotalEccErrors",
        "RemappedRows",
        "FieldValues",
        "NvLinkState",
        "MigMode",
    )
    cards.say(*(f"0 fail nvmlDeviceGet{call} {code}" for call in calls))
    card, other = await read(NvmlSource())
    assert (card.power_w, card.utilization_pct, card.ecc_corrected, card.remapped_rows) == (None, None, None, None)
    assert (card.nvlinks_up, card.pcie_replays, card.mig, card.error) == (None, None, None, None)
    assert (card.memory_total_mib, other.utilization_pct) == (141 * 1024, 87.0)


async def test_a_struct_version_that_the_driver_refuses_falls_back_to_the_older_call(cards: FakeCards) -> None:
    mismatch = 25
    cards.say(f"* fail nvmlDeviceGetMemoryInfo_v2 {mismatch}", f"* fail nvmlDeviceGetTemperatureV {mismatch}")
    card, _ = await read(NvmlSource())
    assert (card.memory_used_mib, card.temperature_c) == (61 * 1024, 61.0), "the reserve can't be told apart there"


@pytest.mark.parametrize(
    "function", ["*", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetUtilizationRates"]
)
async def test_a_lost_card_has_an_error_and_the_others_are_read(cards: FakeCards, function: str) -> None:
    source = NvmlSource()
    await read(source)
    cards.say(f"1 fail {function} {pynvml.NVML_ERROR_GPU_IS_LOST}")
    card, lost = await read(source)
    assert (card.error, lost.error) == (None, "GPU is lost")
    assert lost.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    cards.say()
    assert [one.error for one in await read(source)] == [None, None]


async def test_a_card_that_is_no_longer_listed_is_told_with_its_uuid(cards: FakeCards) -> None:
    source = NvmlSource()
    await read(source)
    del cards.facts[1]
    cards.write()
    found = await read(source)
    assert [(one.index, one.error) for one in found] == [(0, None), (1, "no longer listed")]
    assert found[1].uuid.endswith("01")


async def test_after_a_driver_reload_the_library_is_opened_again_and_topology_told_anew(cards: FakeCards) -> None:
    source = NvmlSource()
    assert (await source.read("n00")).topology is not None
    cards.say("unloaded")
    assert {one.error for one in await read(source)} == {"Driver Not Loaded"}
    cards.say("generation 2", "driver 590.11")
    reading = await source.read("n00")
    assert [one.error for one in reading.gpus] == [None, None]
    assert (source.driver, reading.topology is not None) == ("590.11", True)


async def test_a_reload_between_two_readings_costs_none(cards: FakeCards) -> None:
    source = NvmlSource()
    await read(source)
    cards.say("generation 7")
    assert [one.error for one in await read(source)] == [None, None]


async def test_xid_events_are_told_once_with_their_number(cards: FakeCards) -> None:
    source = NvmlSource()
    first, second, third = (next(XID_NUMBERS) for _ in range(3))
    cards.say(f"xid {first} 1 63", f"xid {second} 1 63", f"xid {third} 0 79")
    card, other = await read(source)
    assert card.xids == [XidReport(code=79)]
    assert other.xids == [XidReport(code=63, count=2)]
    assert [one.xids for one in await read(source)] == [[], []]


async def test_an_xid_of_a_lost_card_is_told_with_the_loss(cards: FakeCards) -> None:
    source = NvmlSource()
    cards.say(f"xid {next(XID_NUMBERS)} 1 79", f"1 fail nvmlDeviceGetUUID {pynvml.NVML_ERROR_GPU_IS_LOST}")
    card, lost = await read(source)
    assert (card.xids, lost.error, lost.xids) == ([], "GPU is lost", [XidReport(code=79)])


async def test_an_event_set_that_fails_costs_the_events_only(cards: FakeCards) -> None:
    cards.say(f"* fail nvmlEventSetCreate {pynvml.NVML_ERROR_NOT_SUPPORTED}")
    assert [one.error for one in await read(NvmlSource())] == [None, None]


async def test_a_process_list_that_grows_while_it_is_asked_for_is_asked_for_again(cards: FakeCards) -> None:
    cards.processes = {0: [(77, GIB)]}
    cards.change(0, grow=20)
    card, _ = await read(NvmlSource())
    assert len(card.processes) == 21


async def test_more_processes_than_a_record_can_carry_are_counted(cards: FakeCards) -> None:
    cards.processes = {0: [(1000 + each, GIB) for each in range(700)]}
    cards.write()
    card, _ = await read(NvmlSource())
    assert (len(card.processes), card.processes_total) == (256, 700)


async def test_the_memory_of_a_process_may_be_unknown(cards: FakeCards) -> None:
    cards.processes = {0: [(77, 0xFFFFFFFFFFFFFFFF), (78, 2**63)]}
    cards.write()
    card, _ = await read(NvmlSource())
    assert [(one.pid, one.memory_mib) for one in card.processes] == [(77, 0), (78, 0)]


async def test_a_card_in_mig_mode_is_told_with_its_instances_and_without_utilization(cards: FakeCards) -> None:
    cards.change(0, mig="1 2")
    card, _ = await read(NvmlSource())
    assert (card.mig, card.utilization_pct, card.error) == (True, None, None)
    assert [(one.uuid, one.gpu_instance) for one in card.mig_instances] == [("MIG-0-0", 7), ("MIG-0-1", 8)]


async def test_a_call_that_hangs_is_reported_and_not_made_again(cards: FakeCards, monkeypatch) -> None:
    source = NvmlSource()
    await read(source)
    monkeypatch.setattr(nvml, "READ_WAIT_S", 0.05)
    cards.say("* hang nvmlDeviceGetCount_v2 400")
    for _ in range(2):
        assert {one.error for one in await read(source)} == {"NVML does not answer"}
    monkeypatch.setattr(nvml, "READ_WAIT_S", 10.0)
    cards.say()
    assert [one.error for one in await read(source)] == [None, None]


async def test_rubbish_goes_through_as_it_is_for_others_to_reject(cards: FakeCards) -> None:
    cards.change(0, util=4_294_967_295, power_mw=4_294_967_295)
    card, _ = await read(NvmlSource())
    assert (card.utilization_pct, card.power_w) == (4_294_967_295.0, 4_294_967.295)


def test_no_driver_is_one_sentence_that_says_what_to_do(cards: FakeCards) -> None:
    cards.say("unloaded")
    with pytest.raises(SourceError, match="GPUGRID_SOURCE=simulated"):
        NvmlSource()


OLD_DRIVER_PROGRAM = """
import asyncio, ctypes, json, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
from services.telemetry.shell.nvml import NvmlSource
card = asyncio.run(NvmlSource().read("n00")).gpus[0]
print(json.dumps([card.error, card.memory_used_mib, card.temperature_c, card.pcie_replays, card.throttles]))
"""


def test_functions_that_an_old_driver_lacks_are_done_without(tmp_path: Path) -> None:
    cards = FakeCards(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", OLD_DRIVER_PROGRAM, str(built(old_driver=True))],
        env={**os.environ, STATE_VARIABLE: str(cards.path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == [None, 61 * 1024, 61.0, None, []]
