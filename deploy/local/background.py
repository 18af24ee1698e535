"""A stack that outlives the command that started it: `up` launches it, `status` looks, `down` stops it.

Owns the detached supervisor process, by way of `stack.json`. Refuses to signal a process that only has the same number.
Read next: `stack_file`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.local import stack_file
from deploy.local.stack_file import StackState
from deploy.local.supervisor import StackFailedError, Supervisor

START_WAIT_S = 180.0  # ten processes that each import numpy, numba and a model on two busy cores
STOP_WAIT_S = 60.0  # every stage drains within its own grace; this is all of them with room to spare
POLL_S = 0.05
LOG_NAME = "supervisor.log"


@contextlib.contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP do what Ctrl-C does, so that every way to stop takes the same orderly path."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(supervisor: Supervisor) -> None:
    """Run a stack until Ctrl-C, SIGTERM or a failure that restarts do not cure; the last is raised."""
    with stop_signals_interrupt():
        try:
            with supervisor:
                supervisor.wait_ended()
                supervisor.check()
        except KeyboardInterrupt:
            return


def launch(argv: Sequence[str], run_dir: Path, wait_s: float = START_WAIT_S) -> StackState:
    """Start a command that serves a stack in `run_dir`, detached, and wait until the stack is ready."""
    run_dir.mkdir(parents=True, exist_ok=True)
    running = status(run_dir)
    if running is not None:
        raise StackFailedError(f"A stack already runs in {run_dir} ({running.state}): stop it with gpugrid down first.")
    stack_file.remove(run_dir)
    log = run_dir / LOG_NAME
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=actions, setsid=True)
    try:
        return _await_ready(pid, run_dir, log, wait_s)
    except BaseException:
        _end(pid)
        raise


def _await_ready(pid: int, run_dir: Path, log: Path, wait_s: float) -> StackState:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise StackFailedError(lines[-1] if lines else f"The stack ended while starting: see {run_dir}.")
        state = stack_file.read(run_dir)
        if state is not None and state.state == "ready" and state.supervisor_pid == pid:
            return state
        time.sleep(POLL_S)
    raise StackFailedError(f"The stack was not ready within {wait_s:.0f} s: see the logs in {run_dir}.")


def _end(pid: int) -> None:
    """Stop a launched supervisor that will not be used, and wait; it stops its processes in order."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_WAIT_S
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)


def status(run_dir: Path) -> StackState | None:
    """The running stack of a folder, or None."""
    state = stack_file.read(run_dir)
    if state is None or not stack_file.is_alive(state.supervisor_pid, state.supervisor_started_s):
        return None
    return state


def down(run_dir: Path, wait_s: float = STOP_WAIT_S) -> bool:
    """Stop the stack of a folder and wait until nothing of it runs; False if none ran.

    A supervisor that does not end in time is killed, which ends its processes at once. What a dead supervisor left
    (nothing, unless its guards were killed, too) is killed by process id and start time.
    """
    state = stack_file.read(run_dir)
    if state is None:
        return False
    was_alive = _end_process(state.supervisor_pid, state.supervisor_started_s, (signal.SIGTERM, signal.SIGKILL), wait_s)
    for process in state.processes:
        _end_process(process.guard_pid, process.guard_started_s, (signal.SIGKILL,), wait_s)
        _end_process(process.pid, process.started_s, (signal.SIGKILL,), wait_s)
    stack_file.remove(run_dir)
    return was_alive


def _end_process(pid: int, start_s: float, numbers: tuple[signal.Signals, ...], wait_s: float) -> bool:
    """Signal one process, each signal when the one before had no effect in time; whether it was alive."""
    was_alive = stack_file.is_alive(pid, start_s)
    for number in numbers:
        if not stack_file.is_alive(pid, start_s):
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while stack_file.is_alive(pid, start_s) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    return was_alive
