"""A supervised stack starts in stages, heals, stops in order, and leaves nothing: however and whenever it is ended."""

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

from deploy.local import background, stack_file
from deploy.local.broker import EmbeddedBroker, answers
from deploy.local.broker_process import broker_process
from deploy.local.ports import is_free
from deploy.local.specification import ProcessSpec, RestartPolicy, file_ready
from deploy.local.supervisor import Hooks, StackFailedError, Supervisor

pytestmark = [pytest.mark.end_to_end]
PROGRAM = Path(__file__).with_name("supervised_program.py")
WAIT_S = 120.0
"""A broker is back after 2 s, after 20 on a machine that is busy with much else."""


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _spec(folder: Path, name: str, *options: str, stage: int = 0, stop_grace_s: float = 10.0) -> ProcessSpec:
    ready = folder / name
    argv = (sys.executable, str(PROGRAM), str(ready), *options)
    return ProcessSpec(name=name, argv=argv, ready=file_ready(ready), stage=stage, stop_grace_s=stop_grace_s)


def _mentioning(text: str) -> list[int]:
    """Processes whose command line has `text` in it."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and process.pid != os.getpid() and any(text in word for word in process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def test_stages_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    steps: list[tuple[str, str]] = []
    hooks = Hooks(on_change=lambda name, state: steps.append((name, state)))
    specs = [_spec(tmp_path, "base"), _spec(tmp_path, "upper", stage=1), _spec(tmp_path, "top", stage=2)]
    with Supervisor("order", tmp_path / "run", specs, hooks) as stack:
        assert stack.state == "ready"
        ready = [name for name, state in steps if state == "ready"]
        assert ready == ["base", "upper", "top"]
        assert steps.index(("base", "ready")) < steps.index(("upper", "starting"))
    assert (tmp_path / "order").read_text().split() == ["top", "upper", "base"]
    assert stack_file.read(tmp_path / "run") is None
    assert _mentioning(str(tmp_path)) == []


def test_a_killed_process_comes_back_and_the_hooks_bracket_the_gap(tmp_path: Path) -> None:
    told: list[str] = []
    hooks = Hooks(
        on_disturbed=lambda name, reason: told.append(f"{name} {reason}"), on_recovered=lambda: told.append("recovered")
    )
    with Supervisor(
        "heal", tmp_path / "run", [_spec(tmp_path, "one", "--child"), _spec(tmp_path, "two")], hooks
    ) as stack:
        first = stack.pid("one")
        os.kill(first, signal.SIGKILL)
        _until(lambda: told[-1:] == ["recovered"], "never recovered")
        assert told == ["one was ended by SIGKILL", "recovered"]
        assert stack.pid("one") not in (0, first)
        # The dead process took its child along; the new one has one of its own.
        _until(lambda: len(_mentioning(f"job-of-{tmp_path}")) == 1, "the dead process's child lives on")
        state = background.status(tmp_path / "run")
        assert state is not None
        assert [(process.name, process.restarts) for process in state.processes] == [("one", 1), ("two", 0)]


def test_a_process_that_cannot_start_ends_the_stack_with_its_last_words(tmp_path: Path) -> None:
    specs = [_spec(tmp_path, "fine"), _spec(tmp_path, "broken", "--fail", stage=1)]
    with pytest.raises(StackFailedError, match=r"broken could not be kept running .*no such setting: GPUGRID_NONSENSE"):
        Supervisor("broken", tmp_path / "run", specs).start()
    assert _mentioning(str(tmp_path)) == []
    assert stack_file.read(tmp_path / "run") is None


def test_a_one_shot_process_may_end_well_once(tmp_path: Path) -> None:
    once = ProcessSpec(name="once", argv=("true",), restart=RestartPolicy(when="never"), stage=1)
    with Supervisor("once", tmp_path / "run", [_spec(tmp_path, "base"), once]) as stack:
        _until(lambda: stack.snapshot().processes[1].state == "done", "the one-shot process is not done")
        stack.check()


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    stack = Supervisor(
        "stubborn", tmp_path / "run", [_spec(tmp_path, "rock", "--stubborn", "--child", stop_grace_s=0.3)]
    )
    stack.start()
    stack.stop()
    assert _mentioning(str(tmp_path)) == []


def test_a_run_folder_has_one_stack(tmp_path: Path) -> None:
    with Supervisor("first", tmp_path / "run", [_spec(tmp_path, "one")]) as first:
        with pytest.raises(StackFailedError, match="Another stack runs in"):
            Supervisor("second", tmp_path / "run", [_spec(tmp_path, "two")]).start()
        first.check()
    with Supervisor("third", tmp_path / "run", [_spec(tmp_path, "one")]) as third:
        third.check()


SERVER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(PROGRAM.parent)!r})
from deploy.local.background import serve
from deploy.local.specification import ProcessSpec, file_ready
from deploy.local.supervisor import Hooks, Supervisor
folder = Path(sys.argv[1])
def spec(name, stage, *options):
    argv = (sys.executable, {str(PROGRAM)!r}, str(folder / name), *options)
    return ProcessSpec(name=name, argv=argv, ready=file_ready(folder / name), stage=stage)
hooks = Hooks(on_change=lambda name, state: print(name, state, flush=True))
print("begin", flush=True)
serve(Supervisor("server", folder / "run", [spec("one", 0, "--child"), spec("two", 1)], hooks))
print("end", flush=True)
"""


@pytest.mark.parametrize("moment", ["begin", "one starting", "one ready", "two starting", "two ready"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_ending_the_supervisor_at_any_moment_leaves_nothing(tmp_path: Path, moment: str, how: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        for line in owner.stdout:
            if line.strip() == moment:
                break
        owner.send_signal(how)
        owner.communicate(timeout=WAIT_S)
        if how == signal.SIGKILL:
            _until(lambda: _mentioning(str(tmp_path)) == [], "something outlived the killed supervisor")
        else:
            assert _mentioning(str(tmp_path)) == []
            assert stack_file.read(tmp_path / "run") is None
        assert background.status(tmp_path / "run") is None
        assert not background.down(tmp_path / "run")
    finally:
        owner.kill()
        owner.wait()


def test_up_status_and_down(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    state = background.launch([sys.executable, "-c", SERVER, str(tmp_path)], run_dir)
    assert [process.state for process in state.processes] == ["ready", "ready"]
    with pytest.raises(StackFailedError, match="already runs"):
        background.launch([sys.executable, "-c", SERVER, str(tmp_path)], run_dir)
    assert background.status(run_dir) is not None
    assert background.down(run_dir)
    assert _mentioning(str(tmp_path)) == []
    assert not background.down(run_dir)


def test_a_stack_that_cannot_come_up_says_why(tmp_path: Path) -> None:
    program = SERVER.replace('"--child"', '"--fail"')
    with pytest.raises(StackFailedError, match="no such setting: GPUGRID_NONSENSE"):
        background.launch([sys.executable, "-c", program, str(tmp_path)], tmp_path / "run")
    assert _mentioning(str(tmp_path)) == []


def test_a_killed_broker_comes_back_on_the_same_port_with_its_topics(tmp_path: Path) -> None:
    told: list[str] = []
    hooks = Hooks(on_disturbed=lambda name, _reason: told.append(name), on_recovered=lambda: told.append("recovered"))
    broker = EmbeddedBroker(tmp_path / "kafka")
    specs = [broker_process(broker), _spec(tmp_path, "service", stage=1)]
    with Supervisor("broker", tmp_path / "run", specs, hooks) as stack:
        assert answers(broker.port)
        os.kill(stack.pid("kafka"), signal.SIGKILL)
        _until(lambda: told == ["kafka", "recovered"], "the broker never came back")
        assert answers(broker.port)
        topics = {path.name.rpartition("-")[0] for path in (tmp_path / "kafka" / "log").glob("*-0")}
        assert {"job-events", "decisions", "placements"} <= topics
        ports = (broker.port, broker.controller_port)
    assert all(is_free(port) for port in ports)
    assert _mentioning(str(tmp_path)) == []
