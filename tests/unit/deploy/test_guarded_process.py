"""A guarded process tells its end, keeps its log small, and takes everything it started along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deploy.local.guarded import GuardedProcess

WAIT_S = 20.0
# A family: the process, a child in the same session, and a grandchild in a session of its own, orphaned at once.
FAMILY = """
import os, subprocess, sys, time
marker = sys.argv[1]
sleeper = [sys.executable, "-c", "import time; time.sleep(600)", marker]
subprocess.Popen(sleeper)
subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleeper!r}, start_new_session=True)", marker])
print("family complete", flush=True)
time.sleep(600)
"""


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _with_marker(marker: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if command and command[-1] == marker and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _family(tmp_path: Path, *, keep_orphans: bool = False) -> tuple[GuardedProcess, str]:
    marker = f"family-of-{tmp_path}"
    log = tmp_path / "family.log"
    process = GuardedProcess([sys.executable, "-c", FAMILY, marker], log_path=log, keep_orphans=keep_orphans)
    _until(lambda: log.exists() and "family complete" in log.read_text(), "the family never came up")
    assert len(_with_marker(marker)) == 4  # the guard, the process, its child and the orphan
    return process, marker


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_and_output_arrive(tmp_path: Path, code: int) -> None:
    argv = [sys.executable, "-c", f"print('out'); import sys; print('err', file=sys.stderr); sys.exit({code})"]
    process = GuardedProcess(argv, log_path=tmp_path / "log")
    assert process.wait(WAIT_S)
    assert process.returncode == code
    process.close()
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_a_signal_is_told_as_such(tmp_path: Path) -> None:
    process = GuardedProcess(["sleep", "600"], log_path=tmp_path / "log")
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(WAIT_S)
    assert process.returncode == -signal.SIGKILL
    process.close()


def test_a_missing_program_is_an_exit_with_a_word_in_the_log(tmp_path: Path) -> None:
    process = GuardedProcess(["/no/such/program"], log_path=tmp_path / "log")
    assert process.wait(WAIT_S)
    assert process.returncode == 127
    process.close()
    assert "cannot start /no/such/program: No such file or directory" in (tmp_path / "log").read_text()


def test_close_leaves_no_descendant(tmp_path: Path) -> None:
    process, marker = _family(tmp_path)
    process.close()
    assert _with_marker(marker) == []


def test_the_death_of_the_process_takes_its_descendants(tmp_path: Path) -> None:
    process, marker = _family(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(WAIT_S)
    _until(lambda: _with_marker(marker) == [], "descendants outlived the process")
    process.close()


def test_kept_orphans_outlive_the_process_but_not_its_owner(tmp_path: Path) -> None:
    process, marker = _family(tmp_path, keep_orphans=True)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(WAIT_S)
    assert len(_with_marker(marker)) == 3  # the guard, the child and the orphan
    process.close()
    assert _with_marker(marker) == []


def test_the_death_of_the_guard_takes_the_process(tmp_path: Path) -> None:
    process = GuardedProcess(["sleep", "600"], log_path=tmp_path / "log")
    pid = process.pid
    os.kill(process.guard_pid, signal.SIGKILL)
    assert process.wait(WAIT_S)
    assert process.returncode == -signal.SIGKILL
    process.close()
    _until(lambda: not psutil.pid_exists(pid), "the process outlived its guard")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_owner_takes_everything(tmp_path: Path, how: signal.Signals) -> None:
    marker = f"family-of-{tmp_path}"
    program = (
        "import sys, time; from pathlib import Path; from deploy.local.guarded import GuardedProcess\n"
        f"kept = GuardedProcess([sys.executable, '-c', {FAMILY!r}, sys.argv[1]], log_path=Path(sys.argv[2]))\n"
        "time.sleep(600)"
    )
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", program, marker, str(log)])
    try:
        _until(lambda: log.exists() and "family complete" in log.read_text(), "the family never came up")
    finally:
        owner.send_signal(how)
        owner.wait(WAIT_S)
    _until(lambda: _with_marker(marker) == [], "something outlived the owner")


def test_the_log_is_bounded(tmp_path: Path) -> None:
    bytes_max = 64 * 1024
    argv = [sys.executable, "-c", "for i in range(20_000): print('a line of output', i)"]
    process = GuardedProcess(argv, log_path=tmp_path / "log", log_bytes_max=bytes_max)
    assert process.wait(WAIT_S)
    process.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 3 * bytes_max  # one read may overshoot each half
    assert "19999" in (tmp_path / "log").read_text() + (tmp_path / "log.1").read_text()


def test_the_environment_and_folder_are_the_given_ones(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.environ['GIVEN'], os.getcwd())"]
    process = GuardedProcess(argv, log_path=tmp_path / "log", env={"GIVEN": "yes"}, cwd=tmp_path)
    assert process.wait(WAIT_S)
    process.close()
    assert (tmp_path / "log").read_text().split() == ["yes", str(tmp_path)]
