"""One process under supervision: its state, its restarts, its log tail. The clock is an argument; no thread, no loop.

Owns one `GuardedProcess` at a time (and earlier guards that still hold kept orphans). Read next: `supervisor`.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from pathlib import Path

from deploy.local.guarded import GuardedProcess, NotStartedError
from deploy.local.specification import ProcessSpec
from deploy.local.stack_file import ProcessState, started_s

LOG_TAIL_BYTES = 4_000
PROGRESS_WAIT_S = 60.0  # a busy process may not answer for seconds; one that says nothing new for a minute hangs


class ManagedProcess:
    """States: waiting → starting → ready; a death leads to backing-off, done or failed; stop leads to stopped."""

    def __init__(self, spec: ProcessSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.state = "waiting"
        self.process: GuardedProcess | None = None
        self.restarts = 0
        self.reason = ""
        self.due_s = 0.0
        self.was_ready = False
        self._said = ""
        self._deadline_s = 0.0
        self._deaths_s: deque[float] = deque(maxlen=spec.restart.restarts_max + 1)
        self._earlier_guards: list[GuardedProcess] = []
        self._start_times = (0.0, 0.0)

    def start(self, now_s: float) -> None:
        """Start it; a start that fails is a death like any other."""
        self._let_go()
        self.state = "starting"
        self._said = ""
        self._deadline_s = now_s + self.spec.ready_wait_s
        argv = self.spec.argv
        try:
            command = list(argv() if callable(argv) else argv)
            self.process = GuardedProcess(
                command,
                log_path=self.log_path,
                env={**os.environ, **self.spec.env},
                cwd=self.spec.cwd,
                keep_orphans=self.spec.keep_orphans,
            )
        except (RuntimeError, OSError, NotStartedError) as error:
            self._died(now_s, 1, str(error))
            return
        self._start_times = (started_s(self.process.pid), started_s(self.process.guard_pid))

    def tick(self, now_s: float) -> None:
        """Move on: notice a death, a readiness, a due restart, a deadline."""
        if self.state == "backing-off" and now_s >= self.due_s:
            self.restarts += 1
            self.start(now_s)
        if self.process is None or self.state not in ("starting", "ready"):
            return
        code = self.process.poll()
        if code is not None:
            self._died(now_s, code, self._why(code))
        elif self.state == "starting" and (self.spec.ready is None or self.spec.ready()):
            self.state = "ready"
        elif self.state == "starting" and now_s > self._deadline_s and not self._comes_on(now_s):
            self.process.signal(signal.SIGKILL)
            self.process.wait(self.spec.stop_grace_s)
            self._died(now_s, 1, f"was not ready within {self.spec.ready_wait_s:.0f} s{self._last_line()}")

    def _comes_on(self, now_s: float) -> bool:
        """A start that is late, but says something new, as one that reads a long history does, has a while more."""
        before, self._said = self._said, "" if self.spec.progress is None else self.spec.progress()
        if self._said in ("", before):
            return False
        self._deadline_s = now_s + PROGRESS_WAIT_S
        return True

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.signal(signal.SIGTERM)
        elif self.state not in ("done", "failed"):
            self.state = "stopped"

    def has_ended(self) -> bool:
        """Whether nothing of it runs but perhaps orphans."""
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """End it with everything it started; nothing is left on return."""
        for guard in (*self._earlier_guards, *([self.process] if self.process else [])):
            guard.close()
        self._earlier_guards.clear()
        self.process = None
        if self.state not in ("done", "failed"):
            self.state = "stopped"

    def snapshot(self) -> ProcessState:
        """For the stack file."""
        running = self.process is not None and self.process.returncode is None
        return ProcessState(
            name=self.spec.name,
            state=self.state,
            pid=self.process.pid if self.process and running else 0,
            started_s=self._start_times[0] if running else 0.0,
            guard_pid=self.process.guard_pid if self.process and running else 0,
            guard_started_s=self._start_times[1] if running else 0.0,
            restarts=self.restarts,
            log=str(self.log_path),
            ports=dict(self.spec.ports),
        )

    def _died(self, now_s: float, code: int, reason: str) -> None:
        self.reason = reason
        self._deaths_s.append(now_s)
        recent = sum(1 for death_s in self._deaths_s if now_s - death_s <= self.spec.restart.window_s)
        pause_s = self.spec.restart.pause_s(code, recent, self.was_ready)
        if pause_s is not None:
            self.state = "backing-off"
            self.due_s = now_s + pause_s
        else:
            self.state = "done" if code == 0 else "failed"

    def _let_go(self) -> None:
        if self.process is None:
            return
        if self.spec.keep_orphans:
            self._earlier_guards.append(self.process)  # its guard lives on for what the dead process had started
        else:
            self.process.close()
        self.process = None

    def _why(self, code: int) -> str:
        if code < 0 or self.spec.explain is None:  # a signal says it all; the log ends in mid-air
            return f"{_how(code)}{'' if code < 0 else self._last_line()}"
        return f"{_how(code)}: {self.spec.explain()}"

    def _last_line(self) -> str:
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1].strip()[:300]}" if lines else ""


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
