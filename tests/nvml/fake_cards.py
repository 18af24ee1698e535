"""Cards that don't exist, behind a real libnvidia-ml.so.1: builds `fake_nvml.c` against NVIDIA's own header and scripts it.

pynvml loads whatever library of that name the process has loaded already, so loading ours first is enough. One process has
one such library for its life: the form of an old driver needs a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
STATE_VARIABLE = "FAKE_NVML_STATE"
GIB = 1024**3


@functools.cache
def built(*, old_driver: bool = False) -> Path:
    """The library, compiled once per process. Skips where there is no C compiler or header."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    header = importlib.util.find_spec("nvidia.cu13")
    if compiler is None or header is None or not header.submodule_search_locations:
        pytest.skip("SKIPPED, NOT PROVEN: NVML's failures need a C compiler and the package nvidia-nvml-dev")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    library = folder / "libnvidia-ml.so.1"
    include = Path(header.submodule_search_locations[0]) / "include"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    variant = ["-DOLD_DRIVER"] if old_driver else []
    names = ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE), "-lpthread"]
    subprocess.run([compiler, *flags, *variant, f"-I{include}", *names], check=True)
    return library


class FakeCards:
    """`facts`: per card; `lines`: anything else the library understands. `write` makes it so."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.path = folder / "cards.txt"
        self.lines: list[str] = []
        self.facts: dict[int, dict[str, str | int]] = {index: usual(index) for index in range(count)}
        self.processes: dict[int, list[tuple[int, int]]] = {}
        self.write()

    def write(self) -> None:
        lines = [f"{index} {key} {value}" for index, facts in self.facts.items() for key, value in facts.items()]
        lines += [f"{index} proc {pid} {size}" for index, found in self.processes.items() for pid, size in found]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join([*lines, *self.lines]) + "\n")
        fresh.replace(self.path)

    def say(self, *lines: str) -> None:
        """Replace everything that is no fact."""
        self.lines = list(lines)
        self.write()

    def change(self, index: int, **facts: str | int) -> None:
        self.facts[index].update(facts)
        self.write()


def usual(index: int) -> dict[str, str | int]:
    """A busy H200 in good health."""
    return {
        "name": "NVIDIA H200",
        "total": 141 * GIB,
        "used": 60 * GIB,
        "reserved": GIB,
        "util": 87,
        "temp": 61,
        "power_mw": 550_500,
        "limit_mw": 700_000,
        "energy_mj": 1_000_000,
        "sm_clock": 1755,
        "mem_clock": 3201,
        "throttles": 0,
        "nvlink": "18 1024 2048 0",
        "pcie": "5000 6000 3",
        "mig": 0,
        "numa": index // 4,
    }


def load_into_this_process(state: Path) -> None:
    """From now on pynvml finds our cards here."""
    os.environ[STATE_VARIABLE] = str(state)
    ctypes.CDLL(str(built()), mode=ctypes.RTLD_GLOBAL)


def let_go() -> None:
    """Take back every initialisation, so that the next test begins with none."""
    while True:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return
