"""Reading cards through a stand-in of NVML's shape: one card's failure is its own, and nothing hangs the agent.

The stand-in answers as nvidia-ml-py does (same names, same exceptions); a compiled library and real cards prove more.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pynvml
import pytest

from services.telemetry.shell import nvml
from services.telemetry.shell.nvml import NvmlSource
from services.telemetry.shell.source import SourceError

MIB = 1024 * 1024


class Cards:
    """`failing`: function name → NVML error code, or {index: code}."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_ERROR_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
    NVML_ERROR_FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.failing: dict[str, dict[int, int]] = {}
        self.opened = 0
        self.hang: threading.Event | None = None

    def __getattr__(self, name: str):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments):
            index = arguments[0] if arguments else -1
            code = self.failing.get(name, {}).get(index)
            if code is not None:
                raise pynvml.NVMLError(code)
            return self.answers(name, index)

        return call

    def answers(self, name: str, index: int):
        match name:
            case "nvmlInit":
                self.opened += 1
                return None
            case "nvmlDeviceGetCount":
                if self.hang is not None:
                    self.hang.wait()
                return self.count
            case "nvmlDeviceGetHandleByIndex":
                return index
            case "nvmlDeviceGetComputeRunningProcesses":
                return [SimpleNamespace(pid=4242, usedGpuMemory=None), SimpleNamespace(pid=7, usedGpuMemory=2**63)]
        return {
            "nvmlSystemGetDriverVersion": b"580.1",
            "nvmlDeviceGetUUID": f"GPU-{index}",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1000 * MIB, used=250 * MIB),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=87, memory=3),
            "nvmlDeviceGetPowerUsage": 350_500,
            "nvmlDeviceGetTemperature": 61,
        }[name]


async def test_a_card_is_read_with_everything_it_has():
    source = NvmlSource(Cards(1))
    (card,) = await source.read("n00")
    assert (source.name, source.driver) == ("nvml", "580.1")
    assert (card.uuid, card.model, card.utilization_pct) == ("GPU-0", "NVIDIA H200", 87.0)
    assert (card.memory_total_mib, card.memory_used_mib, card.power_w, card.temperature_c) == (1000, 250, 350.5, 61)
    assert [(process.pid, process.memory_mib) for process in card.processes] == [(4242, 0), (7, 0)]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
async def test_a_field_that_a_card_does_not_have_is_missing(code):
    cards = Cards(1)
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"):
        cards.failing[name] = {0: code}
    (card,) = await NvmlSource(cards).read("n00")
    assert (card.power_w, card.utilization_pct, card.memory_total_mib, card.error) == (None, None, None, None)


@pytest.mark.parametrize("name", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
async def test_a_lost_card_has_an_error_and_the_others_are_read(name):
    cards = Cards(3)
    source = NvmlSource(cards)
    await source.read("n00")
    cards.failing[name] = {1: pynvml.NVML_ERROR_GPU_IS_LOST}
    found = await source.read("n00")
    assert [card.error is None for card in found] == [True, False, True]
    assert (found[1].uuid, found[1].error) == ("GPU-1", "GPU is lost")


async def test_a_card_that_is_no_longer_listed_is_told_with_its_uuid():
    cards = Cards(2)
    source = NvmlSource(cards)
    await source.read("n00")
    cards.count = 1
    found = await source.read("n00")
    assert [(card.uuid, card.error) for card in found] == [("GPU-0", None), ("GPU-1", "no longer listed")]


async def test_after_a_driver_reload_the_library_is_opened_again():
    cards = Cards(1)
    source = NvmlSource(cards)
    await source.read("n00")
    cards.failing["nvmlDeviceGetCount"] = {-1: pynvml.NVML_ERROR_UNINITIALIZED}
    (card,) = await source.read("n00")
    assert card.error == "Uninitialized"
    cards.failing.clear()
    (card,) = await source.read("n00")
    assert card.error is None
    assert cards.opened == 2


async def test_a_call_that_hangs_is_reported_and_not_made_again(monkeypatch):
    monkeypatch.setattr(nvml, "READ_WAIT_S", 0.05)
    cards = Cards(1)
    source = NvmlSource(cards)
    await source.read("n00")
    cards.hang = threading.Event()
    for _ in range(2):
        (card,) = await source.read("n00")
        assert card.error == "NVML does not answer"
    cards.hang.set()
    monkeypatch.setattr(nvml, "READ_WAIT_S", 10.0)
    (card,) = await source.read("n00")
    assert card.error is None


def test_no_library_is_one_sentence_that_says_what_to_do():
    cards = Cards(1)
    cards.failing["nvmlInit"] = {-1: pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
    with pytest.raises(SourceError, match="GPUGRID_SOURCE=simulated"):
        NvmlSource(cards)
