"""Prometheus and Chromium from the system's packages.

Owns: looking for them, and installing Debian's packages where this process may. Nothing is started by that: tests run their own on
a free port. Refuses: other package managers (it says what to install instead). Read next: `running.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

INSTALL_S_MAX = 300.0
PACKAGES = {
    "prometheus": ("prometheus",),
    "chromium": ("chromium", "fonts-dejavu-core"),
}
"""Debian's packages by the command they bring; a browser needs a font to show anything."""


class PackageInstallError(RuntimeError):
    """One sentence that says what to do."""


def prometheus_path() -> Path | None:
    return _path("prometheus")


def promtool_path() -> Path | None:
    return _path("promtool")


def chromium_path() -> Path | None:
    return _path("chromium")


def install_prometheus(say: Callable[[str], None]) -> Path:
    """The binary, installing the package if it is missing. Raises PackageInstallError."""
    return _install("prometheus", say)


def install_chromium(say: Callable[[str], None]) -> Path:
    """The binary, installing the packages if it is missing. Raises PackageInstallError."""
    return _install("chromium", say)


def _path(command: str) -> Path | None:
    found = shutil.which(command)
    return None if found is None else Path(found)


def _install(command: str, say: Callable[[str], None]) -> Path:
    if (found := _path(command)) is not None:
        return found
    packages = " ".join(PACKAGES[command])
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise PackageInstallError(f"{command} is not installed: install your system's package `{command}`.")
    say(f"installing Debian's {packages}: about half a minute, once")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *PACKAGES[command]]):
        done = subprocess.run(
            [apt, *step], env=environment, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
        )
        if done.returncode != 0 and step[0] == "install":
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PackageInstallError(f"`apt-get install {packages}` failed ({last}): install it by hand.")
    if (found := _path(command)) is None:
        raise PackageInstallError(f"{packages} brought no {command}: install it by hand.")
    return found
