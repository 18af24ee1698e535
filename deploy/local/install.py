"""`make setup`: a virtual environment with exactly the locked packages, from nothing but Python 3.11 and its pip.

Run by the system's Python (`python3.11 deploy/local/install.py`), so the standard library is all it has.
Owns `.venv`. Refuses packages whose hash is not in `requirements.lock`, and says in one sentence what is missing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
STAMP = ".gpugrid-installed"
FREE_BYTES_MIN = 3 * 1024**3  # 1.6 GB of packages, and as much again while wheels are unpacked
TAIL_LINES = 60  # of pip's output, to find the reason of a failure in

_UNREACHABLE = (
    "The package registry cannot be reached: check the network, or point PIP_INDEX_URL at a mirror, and run again."
)

# What pip says, and what a person can do about it; the first match wins.
_REASONS = (
    ("No space left on device", "The disk is full: free about 3 GB where this folder and pip's cache are, and run again."),
    ("THESE PACKAGES DO NOT MATCH THE HASHES", "A downloaded package differs from requirements.lock: do not trust it; clear "
     "pip's cache or try another network or mirror."),
    ("CERTIFICATE_VERIFY_FAILED", "The package registry's TLS certificate is not trusted here: point PIP_CERT at your "
     "organisation's certificate file."),
    ("ProxyError", "The proxy did not let pip through: check HTTPS_PROXY and run again."),
    ("Temporary failure in name resolution", _UNREACHABLE),
    ("Name or service not known", _UNREACHABLE),
    ("Failed to establish a new connection", _UNREACHABLE),
    ("Read timed out", "The package registry answers too slowly: run again, or point PIP_INDEX_URL at a mirror."),
    ("(from versions: none)", "The package registry could not be read, or lacks a locked package: check the network and "
     "PIP_INDEX_URL, and that this is Linux or macOS on x86-64 or ARM."),
    ("No matching distribution found", "The package registry does not offer a locked package for this platform: use Linux "
     "or macOS on x86-64 or ARM, and check that PIP_INDEX_URL (if set) is a full mirror."),
    ("Permission denied", "A file could not be written: check who owns this folder and pip's cache."),
)  # fmt: skip


class SetupError(Exception):
    """Setup cannot go on; the message is one sentence that says what to do."""


def reason_of(pip_output: str) -> str:
    """One sentence for a failed pip."""
    for needle, sentence in _REASONS:
        if needle in pip_output:
            return sentence
    lines = [line.strip() for line in pip_output.splitlines() if line.strip()] or ["no output"]
    telling = [line for line in lines if "Error:" in line or line.startswith("ERROR")] or lines
    return f"pip failed ({telling[-1][:300]}): see .venv/pip.log."


def digest(root: Path) -> str:
    """What an installation depends on; the same digest means nothing to do."""
    parts = [sys.version, str(root)]
    parts += [(root / name).read_text() for name in ("requirements.lock", "pyproject.toml")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_python(version: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Refuse what cannot work before anything is written."""
    if version != (3, 11):
        raise SetupError(
            f"gpugrid needs Python 3.11 and this is {version[0]}.{version[1]}: install Python 3.11 and run "
            "make setup PYTHON=/path/to/python3.11."
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            "This Python 3.11 cannot make virtual environments: install its venv module (on Debian and Ubuntu the package "
            "python3.11-venv) and run again."
        )


def check_disk(folder: Path, need_bytes: int = FREE_BYTES_MIN) -> None:
    """Refuse to begin what would end with a full disk."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise SetupError(
            f"The disk of {folder} has {free_bytes / 1e9:.1f} GB free and the installation needs {need_bytes / 1e9:.1f} GB: "
            "free some space and run again."
        )


def usable(python: Path) -> bool:
    """Whether this environment's Python runs and has pip; a moved or half-made one does not."""
    try:
        done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def install(root: Path) -> None:
    """Bring `.venv` to the locked state; returns at once when it is there."""
    check_python()
    venv = root / ".venv"
    stamp = venv / STAMP
    wanted = digest(root)
    python = venv / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        stamp.touch()
        return
    check_disk(root)
    if not usable(python):
        shutil.rmtree(venv, ignore_errors=True)
        print("Creating .venv ...", flush=True)
        done = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"The virtual environment could not be made: {reason_of(done.stdout + done.stderr)}")
    locked = (root / "requirements.lock").read_text()
    total = sum(1 for line in locked.splitlines() if "==" in line and not line.lstrip().startswith("#"))
    log = venv / "pip.log"
    log.unlink(missing_ok=True)
    _pip(python, ["--require-hashes", "--no-deps", "-r", "requirements.lock"], root, log, total)
    _pip(python, ["--no-deps", "--no-build-isolation", "--editable", "."], root, log, 0)
    stamp.write_text(wanted)
    print(f"{total} locked packages are installed in .venv.", flush=True)


def _pip(python: Path, arguments: list[str], root: Path, log: Path, total: int) -> None:
    """Run one `pip install`, counting packages aloud, everything else into the log."""
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    found = 0
    told_s = 0.0
    with (
        log.open("a") as copy,
        subprocess.Popen(
            [*command, *arguments],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            copy.write(line)
            tail.append(line)
            if line.startswith(("Collecting ", "Requirement already satisfied")):
                found += 1
                if total and time.monotonic() - told_s > 2.0:
                    told_s = time.monotonic()
                    print(f"Packages: {found} of {total} ...", flush=True)
            elif line.startswith("Installing collected packages") and total:
                print(f"Packages: {total} of {total}; unpacking (about a minute) ...", flush=True)
    if pip.returncode != 0:
        raise SetupError(reason_of("".join(tail)))


def main() -> int:
    """Install, or say in one sentence why not."""
    try:
        install(ROOT)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(reason_of(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; run make setup again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
