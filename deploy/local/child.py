"""A guard around one process, so that nothing it started outlives whoever started the guard.

Run as a script by `guarded.GuardedProcess`, with the standard library only (`python -I -S`, about 25 ms and 9 MB):
`child.py CONTROL_FD KEEP_ORPHANS LOG_PATH LOG_BYTES_MAX -- COMMAND...`

- The control socket ends when its owner dies, however it dies (SIGKILL included): then the guard kills its command, and
  everything the command started, even in sessions of their own: as "child subreaper" it inherits all orphans.
- The guard dies first? Then the kernel kills the command (PR_SET_PDEATHSIG; the guard has one thread, so the rule that
  the signal belongs to a thread of the parent does not bite).
- Each byte received is a signal for the command's process group; SIGKILL takes its orphans along. Signals go through
  the guard because only it knows that the process id has not been given to somebody else.
- The command's output is copied into a log of bounded size; a full disk loses log lines, never the process.

Linux in full; elsewhere without subreaper and PDEATHSIG, so process groups only.
Owns nothing but one process. Refuses to decide: restarts and readiness are `supervisor`'s.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 65_536
EXIT_NOT_STARTED = 127  # as shells say it: the command could not be executed


class BoundedLog:
    """Append to a file; at half of the allowed size the file becomes `.1` and a new one begins."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self._path = Path(path)
        self._bytes_max = bytes_max
        self._file = self._open()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return -1

    def write(self, data: bytes) -> None:
        """Write what the disk takes; output is never worth stopping the process for."""
        try:
            if self._file < 0:
                self._file = self._open()
            os.write(self._file, data)
            if os.fstat(self._file).st_size > self._bytes_max // 2:
                os.close(self._file)
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._open()
        except OSError:
            return


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str], output: int) -> int:
    """Fork and execute `command` in a session of its own, tied to this guard's life."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the line above took effect
            os._exit(EXIT_NOT_STARTED)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


def _children() -> list[int]:
    """Process ids whose parent is this guard (its command, and orphans it inherited)."""
    own = os.getpid()
    found = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == own:
            found.append(int(entry.name))
    return found


def _kill(pid: int, number: int, *, group: bool) -> None:
    try:
        (os.killpg if group else os.kill)(pid, number)
    except OSError:
        return


class Guard:
    """The loop: control bytes in, output to the log, exits noticed, orphans inherited."""

    def __init__(self, control: socket.socket, command: list[str], log: BoundedLog, keep_orphans: bool) -> None:
        self._control = control
        self._log = log
        self._keep_orphans = keep_orphans
        self._exited = False
        self._output, write_end = os.pipe()
        os.set_blocking(self._output, False)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake = wake_read
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self._child = _start(command, write_end)
        os.close(write_end)
        self._tell(f"started {self._child}\n")

    def run(self) -> None:
        """Until the owner is gone, or the command and (unless kept) its orphans are."""
        with selectors.DefaultSelector() as selector:
            for source in (self._control.fileno(), self._output, self._wake):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._output in ready and not self._copy_output():
                    selector.unregister(self._output)
                if self._wake in ready and self._noticed():
                    return
                if self._control.fileno() in ready and not self._obey():
                    self._sweep()
                    return

    def _tell(self, line: str) -> None:
        try:
            self._control.sendall(line.encode())
        except OSError:
            return  # the owner is gone; the next read says so

    def _copy_output(self) -> bool:
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._log.write(data)
        return bool(data)

    def _obey(self) -> bool:
        try:
            orders = self._control.recv(64)
        except OSError:
            return False
        for number in orders:
            if not self._exited:
                _kill(self._child, number, group=True)
            if number == signal.SIGKILL:
                return False
        return bool(orders)

    def _noticed(self) -> bool:
        """Handle arrived signals; True when nothing is left to guard."""
        if signal.SIGTERM in os.read(self._wake, 256) and not self._exited:
            _kill(self._child, signal.SIGTERM, group=True)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._exited
            if pid == 0:
                return False
            if pid == self._child:
                self._ended(status)
                if not self._keep_orphans:
                    self._sweep()
                    return True

    def _ended(self, status: int) -> None:
        self._exited = True
        for _ in range(16):  # what a dying process wrote last fits in one pipe buffer, 64 KiB, read in a few turns
            try:
                if not self._copy_output():
                    break
            except OSError:
                break
        self._tell(f"exited {os.waitstatus_to_exitcode(status)}\n")

    def _sweep(self) -> None:
        """Kill and reap until no descendant is left; each death hands its children to this guard."""
        if not self._exited:
            _kill(self._child, signal.SIGKILL, group=True)
        while True:
            for pid in _children():
                _kill(pid, signal.SIGKILL, group=False)
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            if pid == self._child:
                self._ended(status)


def main(argv: list[str]) -> None:
    """Guard one command until it, or the owner of the control socket, is gone."""
    control_fd, keep_orphans, log_path, log_bytes_max, _, *command = argv
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    Guard(control, command, BoundedLog(log_path, int(log_bytes_max)), keep_orphans == "1").run()


if __name__ == "__main__":
    main(sys.argv[1:])
