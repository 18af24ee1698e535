"""Prometheus and promtool from the system's packages.

Owns: looking for them, and installing Debian's package where this process may. Nothing is started by that: tests run their own
Prometheus on a free port. Refuses: other package managers (it says what to install instead). Read next: `running.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

INSTALL_S_MAX = 300.0
PACKAGE = "prometheus"


class PrometheusInstallError(RuntimeError):
    """One sentence that says what to do."""


def prometheus_path() -> Path | None:
    found = shutil.which("prometheus")
    return None if found is None else Path(found)


def promtool_path() -> Path | None:
    found = shutil.which("promtool")
    return None if found is None else Path(found)


def install_prometheus(say: Callable[[str], None]) -> Path:
    """The binary, installing the package if it is missing. Raises PrometheusInstallError."""
    if (found := prometheus_path()) is not None:
        return found
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise PrometheusInstallError(
            "Prometheus is not installed: install your system's package `prometheus` 2.42 or newer."
        )
    say("installing Debian's package prometheus: about half a minute, once")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", PACKAGE]):
        done = subprocess.run(
            [apt, *command], env=environment, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
        if done.returncode != 0 and command[0] == "install":
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PrometheusInstallError(f"`apt-get install {PACKAGE}` failed ({last}): install it by hand.")
    if (found := prometheus_path()) is None:
        raise PrometheusInstallError(f"the package {PACKAGE} brought no prometheus: install it by hand.")
    return found
