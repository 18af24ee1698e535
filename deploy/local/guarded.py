"""The owner's side of a guarded process: start it, signal it, learn of its end; it dies when the owner does.

Owns one guard (see `child`) and its control socket. Refuses to restart anything. Read next: `supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_WAIT_S = (
    20.0  # the guard forks within 50 ms; a machine busy with everything at once has been seen to take seconds
)
LOG_BYTES_MAX = 16 * 1024 * 1024  # per process, two files of half that; a replay day writes far less
_GUARD = Path(__file__).with_name("child.py")


class NotStartedError(RuntimeError):
    """The guard itself could not start a process."""


class GuardedProcess:
    """One operating-system process that cannot outlive this object's process.

    `returncode` is None while it runs, then as in `subprocess` (negative: the signal that ended it).
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        keep_orphans: bool = False,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._socket, theirs = socket.socketpair()
        guard_argv = [sys.executable, "-I", "-S", str(_GUARD), str(theirs.fileno()), str(int(keep_orphans))]
        guard_argv += [str(log_path), str(log_bytes_max), "--", *argv]
        try:
            self._guard = subprocess.Popen(
                guard_argv,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,  # a terminal's Ctrl-C is for the owner, who stops things in order
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.log_path = log_path
        self.pid = 0
        self.returncode: int | None = None
        self._unread = b""
        try:
            self._await_start(argv[0])
        except BaseException:
            self.close()
            raise

    @property
    def guard_pid(self) -> int:
        """Process id of the guard."""
        return self._guard.pid

    def fileno(self) -> int:
        """For selectors: readable when `poll` has news."""
        return self._socket.fileno()

    def poll(self) -> int | None:
        """Read news from the guard without waiting; the exit code once there is one."""
        while self.returncode is None and self._socket.fileno() >= 0:
            if not select.select([self._socket], [], [], 0)[0]:
                break
            try:
                data = self._socket.recv(4096)
            except ConnectionError:
                data = b""
            if not data:
                self._guard_lost()
                break
            self._unread += data
            self._read_lines()
        return self.returncode

    def signal(self, number: int) -> None:
        """Send a signal to the process group; SIGKILL takes every descendant along."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([number]))

    def wait(self, wait_s: float) -> bool:
        """Whether the process has ended within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while self.poll() is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            select.select([self._socket], [], [], left_s)
        return True

    def stop(self, grace_s: float) -> None:
        """Ask with SIGTERM, wait, then kill; on return nothing of it is left."""
        try:
            self.signal(signal.SIGTERM)
            self.wait(grace_s)
        finally:
            self.close()

    def close(self) -> None:
        """Let go: the guard kills what is left, orphans included, and ends; waits for that."""
        self.poll()
        self._socket.close()
        self._guard.wait()
        if self.returncode is None:
            self.returncode = -signal.SIGKILL

    def _await_start(self, name: str) -> None:
        deadline = time.monotonic() + START_WAIT_S
        while self.pid == 0:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self.returncode is not None:
                raise NotStartedError(f"The guard of {name} did not start (exit code {self.returncode}).")
            select.select([self._socket], [], [], left_s)
            self.poll()

    def _read_lines(self) -> None:
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "started":
                self.pid = int(number)
            elif word == "exited":
                self.returncode = int(number)

    def _guard_lost(self) -> None:
        """The guard died without a word; the kernel killed its command, its group may have more members."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self.returncode = -signal.SIGKILL
