"""Real cards through the real libnvidia-ml: what the compiled stand-in can't prove. Skipped, loudly, where there are none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time

import pytest

from services.telemetry.core.readings import believed
from services.telemetry.shell.agent import PERIOD_S
from services.telemetry.shell.nvml import NvmlSource
from services.telemetry.shell.source import NodeReading, SourceError

MUST = "GPUGRID_GPU_REQUIRED"
"""Set by `make test-gpu`: there nothing may be skipped."""


@pytest.fixture(scope="module")
def source() -> NvmlSource:
    try:
        return NvmlSource()
    except SourceError as error:
        if os.environ.get(MUST):
            pytest.fail(str(error))
        pytest.skip(f"SKIPPED, NOT PROVEN: no real GPU here ({error})")


def read(source: NvmlSource) -> NodeReading:
    return asyncio.run(source.read("n00"))


def test_every_card_answers_and_all_it_says_is_believed(source: NvmlSource) -> None:
    reading = read(source)
    assert reading.gpus
    for gpu in reading.gpus:
        print(gpu)
        assert gpu.error is None
        assert believed(gpu).rejected == ()
        assert gpu.model
        assert gpu.uuid.startswith("GPU-")
        assert (gpu.memory_total_mib or 0) > 1000
    assert reading.topology is not None
    print(reading.topology, reading.host)
    assert sorted(index for domain in reading.topology.nvlink_domains for index in domain) == list(
        range(len(reading.gpus))
    )


def test_readings_agree_with_nvidia_smi(source: NvmlSource) -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("SKIPPED: no nvidia-smi here")
    asked = ["--query-gpu=uuid,memory.total,temperature.gpu", "--format=csv,noheader,nounits"]
    lines = subprocess.run([smi, *asked], capture_output=True, text=True, check=True).stdout.strip().splitlines()
    told = {uuid: (float(total), float(heat)) for uuid, total, heat in (line.split(", ") for line in lines)}
    for gpu in read(source).gpus:
        total, heat = told[gpu.uuid]
        assert gpu.memory_total_mib == pytest.approx(total, rel=0.02)
        assert gpu.temperature_c == pytest.approx(heat, abs=10)


def test_reading_costs_less_than_a_hundredth_of_a_core(source: NvmlSource) -> None:
    read(source)
    begun_s, readings = time.process_time(), 10
    for _ in range(readings):
        gpus = len(read(source).gpus)
    used_s = (time.process_time() - begun_s) / readings
    print(f"{used_s * 1000:.1f} ms of a processor per reading of {gpus} cards")
    assert used_s * 8 / gpus < 0.01 * PERIOD_S
