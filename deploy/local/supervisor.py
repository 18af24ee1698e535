"""One supervisor starts a stack's processes, watches them, restarts what dies, and stops them in order.

    with Supervisor("demo", run_dir, specs, Hooks(on_disturbed=clock_pause, on_recovered=clock_resume)) as stack:
        ...                     # all ready; stack.check() raises if one could not be kept alive

A thread of its own does the work, so the caller is free to run an event loop or a screen. Ctrl-C at any moment is safe by
construction: everything runs in guarded processes, which die when this process does, even by SIGKILL.
Owns the run folder (locked, one stack per folder), the processes and `stack.json`. Refuses to know what a process does.
Read next: `specification`, `managed`, `background`.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from deploy.local import stack_file
from deploy.local.cache import directory_lock, write_failure
from deploy.local.managed import ManagedProcess
from deploy.local.specification import ProcessSpec
from deploy.local.stack_file import StackState

PROBE_EVERY_S = 0.05  # while something starts: readiness is noticed within a frame or two of a screen
IDLE_EVERY_S = 1.0  # otherwise deaths wake the thread by themselves; this only bounds surprises


class StackFailedError(RuntimeError):
    """The stack could not be started or kept alive; the message is one sentence that says what to do."""


def _nothing(*_: object) -> None:
    return


@dataclass(frozen=True)
class Hooks:
    """Called in the supervising thread: keep them short, and never call the supervisor from them.

    `on_change(name, state)` for every step of every process. `on_disturbed(name, reason)` at once when a process of a
    ready stack dies; `on_recovered()` when all are ready again: between the two a replay pauses its clock.
    """

    on_change: Callable[[str, str], None] = _nothing
    on_disturbed: Callable[[str, str], None] = _nothing
    on_recovered: Callable[[], None] = _nothing


class Supervisor:
    """A stack of processes in one run folder."""

    def __init__(self, name: str, run_dir: Path, specs: Sequence[ProcessSpec], hooks: Hooks | None = None) -> None:
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError("two processes have the same name")
        self.name = name
        self.run_dir = run_dir.absolute()
        self._hooks = hooks or Hooks()
        self._stages = sorted({spec.stage for spec in specs})
        self._managed = [ManagedProcess(spec, self.run_dir / f"{spec.name}.log") for spec in specs]
        self._by_name = {managed.spec.name: managed for managed in self._managed}
        self._seen: dict[str, tuple[str, int]] = {}
        self._state = "starting"
        self._failure = ""
        self._settled = threading.Event()  # ready or failed for the first time
        self._ended = threading.Event()  # everything is stopped, for whatever reason
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._wake_read, self._wake_write = -1, -1
        self._thread: threading.Thread | None = None
        self._held = ExitStack()

    @property
    def state(self) -> str:
        """starting, ready, disturbed, stopping, stopped or failed."""
        return self._state

    @property
    def failure(self) -> str:
        """Why it failed, in one sentence; empty otherwise."""
        return self._failure

    def start(self) -> None:
        """Start everything and wait until all is ready; on failure or Ctrl-C nothing is left."""
        try:
            self.begin()
            self._settled.wait()
            self.check()
        except BaseException:
            self.stop()
            raise

    def begin(self) -> None:
        """Start everything without waiting for it."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(directory_lock(self.run_dir, wait_s=0.0))
        except TimeoutError as error:
            raise StackFailedError(
                f"Another stack runs in {self.run_dir}: stop it with gpugrid down, or choose another name."
            ) from error
        except OSError as error:
            raise StackFailedError(write_failure(self.run_dir, error, "choose another run folder")) from error
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"supervisor-{self.name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if a process could not be started or kept alive."""
        if self._failure:
            raise StackFailedError(self._failure)

    def wait_ended(self, wait_s: float | None = None) -> bool:
        """Wait until everything is stopped (after a failure, or `stop` in another thread); a signal interrupts."""
        return self._ended.wait(wait_s)

    def pid(self, name: str) -> int:
        """Process id of a running process, 0 while it is down."""
        return self._by_name[name].snapshot().pid

    def snapshot(self) -> StackState:
        """What `stack.json` says now."""
        return StackState(
            name=self.name,
            state=self._state,
            supervisor_pid=os.getpid(),
            supervisor_started_s=stack_file.started_s(os.getpid()),
            processes=tuple(managed.snapshot() for managed in self._managed),
            failure=self._failure,
        )

    def stop(self) -> None:
        """Stop all in reverse order and wait for it; a Ctrl-C meanwhile makes it kill instead of ask."""
        while self._thread is not None:
            try:
                self._stop.set()
                self._wake()
                self._thread.join()
                self._thread = None
            except KeyboardInterrupt:
                self._hurry.set()
        for descriptor in (self._wake_read, self._wake_write):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_read = self._wake_write = -1
        self._held.close()

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wake(self) -> None:
        if self._wake_write >= 0:
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        """The supervising thread."""
        try:
            while not self._stop.is_set() and not self._failure:
                self._step(time.monotonic())
                self._publish()
                if not self._failure:
                    self._wait()
        except Exception as error:
            self._failure = f"The supervisor itself failed ({type(error).__name__}: {error}): please report it."
        finally:
            try:
                self._stop_all()
            finally:
                self._settled.set()  # after the stop: who waited for readiness finds nothing left
                self._ended.set()

    def _step(self, now_s: float) -> None:
        """One round: start the stages that may start, move every process on, judge the whole."""
        for stage in self._stages:
            members = [managed for managed in self._managed if managed.spec.stage == stage]
            for managed in members:
                before = managed.state
                if before == "waiting":
                    managed.start(now_s)
                managed.tick(now_s)
                self._after(managed, before)
            if not all(managed.was_ready for managed in members):
                break
        self._judge()

    def _after(self, managed: ManagedProcess, before: str) -> None:
        name = managed.spec.name
        if managed.state == "failed" and not self._failure:
            self._failure = f"{name} could not be kept running ({managed.reason.rstrip('.')}): see {managed.log_path}."
        if managed.state == "backing-off" and before == "ready" and self._state in ("ready", "disturbed"):
            self._state = "disturbed"
            self._hooks.on_disturbed(name, managed.reason)
        if managed.state in ("ready", "done") and not managed.was_ready:
            if managed.spec.on_first_ready is not None and managed.state == "ready":
                try:
                    managed.spec.on_first_ready()
                except RuntimeError as error:
                    self._failure = str(error)
                    return
            managed.was_ready = True

    def _judge(self) -> None:
        if not all(managed.was_ready and managed.state in ("ready", "done") for managed in self._managed):
            return
        if self._state == "starting":
            self._state = "ready"
            self._settled.set()
        elif self._state == "disturbed":
            self._state = "ready"
            self._hooks.on_recovered()

    def _publish(self) -> None:
        """Tell what changed since the last round, and write it down."""
        changed = False
        for managed in self._managed:
            seen = (managed.state, managed.restarts)
            if self._seen.get(managed.spec.name) != seen:
                self._seen[managed.spec.name] = seen
                changed = True
                self._hooks.on_change(managed.spec.name, managed.state)
        if changed or self._seen.get("") != (self._state, 0):
            self._seen[""] = (self._state, 0)
            stack_file.write(self.run_dir, self.snapshot())

    def _wait(self) -> None:
        """Until a process dies, somebody stops us, or it is time to probe."""
        busy = any(managed.state in ("waiting", "starting", "backing-off") for managed in self._managed)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for managed in self._managed:
                if managed.process is not None and managed.process.returncode is None:
                    selector.register(managed.process.fileno(), selectors.EVENT_READ)
            selector.select(PROBE_EVERY_S if busy else IDLE_EVERY_S)

    def _stop_all(self) -> None:
        """Reverse order: ask a stage, wait for its members, kill what is left with all it started."""
        failed = bool(self._failure)
        self._state = "stopping"
        stack_file.write(self.run_dir, self.snapshot())
        try:
            for stage in reversed(self._stages):
                self._stop_stage([managed for managed in self._managed if managed.spec.stage == stage])
        finally:
            for managed in self._managed:
                managed.kill()
            self._state = "failed" if failed else "stopped"
            stack_file.remove(self.run_dir)

    def _stop_stage(self, members: list[ManagedProcess]) -> None:
        for managed in members:
            managed.terminate()
        deadline_s = time.monotonic() + max(managed.spec.stop_grace_s for managed in members)
        while time.monotonic() < deadline_s and not self._hurry.is_set():
            if all(managed.has_ended() for managed in members):
                break
            time.sleep(PROBE_EVERY_S)
        for managed in members:
            managed.kill()
            self._hooks.on_change(managed.spec.name, managed.state)
