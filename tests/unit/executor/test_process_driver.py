"""The process driver with real processes: exits, signals, checkpoints, whole groups, and what a job finds around it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from schemas.executions import FailureCause
from schemas.placements import Assignment, Desired
from services.console.job_logs import RunLog, follow
from services.executor.shell.drivers import process
from services.executor.shell.drivers.conversation import Conversation
from services.executor.shell.drivers.environment import Site, environment_of
from services.executor.shell.drivers.identity import ProcessId
from services.executor.shell.drivers.port import Order, StartRefusedError
from services.executor.shell.drivers.process import ProcessDriver
from services.runtime.clock import WallClock

PATIENCE_S = 20.0


def job(*command: str, gpus: tuple[int, ...] = (0,), job_id: str = "a", **changed) -> Assignment:
    return Assignment(
        job_id=job_id, attempt=1, desired=Desired.RUN, gpus=list(gpus), command=list(command) or None, **changed
    )


def python(code: str, **changed) -> Assignment:
    return job(sys.executable, "-c", code, **changed)


@pytest.fixture
def driver(tmp_path: Path) -> ProcessDriver:
    return ProcessDriver(WallClock(), tmp_path, Site(nodes=("n00",)), grace_s=0.5)


def order(assignment: Assignment, spawn: int = 1) -> Order:
    return Order("n00", assignment, spawn)


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)


def output(driver: ProcessDriver, assignment: Assignment) -> str:
    return (driver.folder_of(order(assignment)) / "output.log").read_text()


async def run_to_end(driver: ProcessDriver, assignment: Assignment):
    run = await driver.start(order(assignment))
    return await asyncio.wait_for(run.ended(), PATIENCE_S)


@pytest.mark.parametrize(
    ("code", "cause", "exit_code", "number"),
    [
        ("pass", None, None, None),
        ("raise SystemExit(3)", FailureCause.EXIT_CODE, 3, None),
        ("raise SystemExit(137)", FailureCause.EXIT_CODE, 137, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", FailureCause.SIGNAL, None, 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", FailureCause.SIGNAL, None, 15),
    ],
)
async def test_exit_codes_and_signals_are_told_apart(driver, code, cause, exit_code, number):
    exit = await run_to_end(driver, python(code))
    assert (exit.cause, exit.exit_code, exit.signal) == (cause, exit_code, number)


async def test_output_goes_to_a_log_in_the_run_folder_and_input_is_empty(driver):
    assignment = python("import sys; print('out', repr(sys.stdin.read())); print('err', file=sys.stderr)")
    await run_to_end(driver, assignment)
    assert sorted(output(driver, assignment).split("\n")) == ["", "err", "out ''"]


async def test_a_job_runs_in_a_session_of_its_own_with_default_signals(driver):
    assignment = python(
        "import os, signal; print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    await run_to_end(driver, assignment)
    assert output(driver, assignment) == "True True\n"


@pytest.mark.parametrize(
    ("assignment", "cause", "wanted"),
    [
        (job("no-such-binary-here"), FailureCause.SPAWN, "no-such-binary-here"),
        (job("/etc/passwd"), FailureCause.SPAWN, "Permission denied"),
        (job("true", working_directory="/no/such/folder"), FailureCause.WORKING_DIRECTORY, "/no/such/folder"),
        (job(template="simulated"), FailureCause.PREFLIGHT, "GPUGRID_DRIVER=simulated"),
        (job(template="finetune"), FailureCause.PREFLIGHT, "submit it with a command"),
        (job("echo", "a\0b"), FailureCause.SPAWN, "Invalid argument"),
    ],
)
async def test_what_can_not_start_fails_with_its_cause(driver, assignment, cause, wanted):
    with pytest.raises(StartRefusedError) as refused:
        await driver.start(order(assignment))
    assert refused.value.cause is cause
    assert wanted in refused.value.detail


async def test_a_stop_ends_grandchildren_too_even_in_sessions_of_their_own(driver, tmp_path):
    code = (
        "import subprocess, sys, time, pathlib\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "near, far = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(f'{{near.pid}} {{far.pid}} done')\n"
        "time.sleep(600)\n"
    )
    run = await driver.start(order(python(code)))
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: (tmp_path / "pids").exists() and "done" in (tmp_path / "pids").read_text())
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()[:2]]
    await run.stop()
    exit = await ended
    assert (exit.cause, exit.signal) == (FailureCause.SIGNAL, signal.SIGTERM)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_what_a_short_job_leaves_in_a_session_of_its_own_ends_with_it(driver, tmp_path, monkeypatch):
    """It was there before its runner had time for anything; without a control group."""
    monkeypatch.setattr(process, "group_of", lambda folder: "")
    up = tmp_path / "up"
    left_behind = f"setsid sh -c 'echo $$ > {up}.new; mv {up}.new {up}; exec sleep 600'"
    short = job("sh", "-c", f"({left_behind} &); until test -e {up}; do :; done")
    assert (await run_to_end(driver, short)).cause is None
    assert not Path(f"/proc/{int(up.read_text())}").exists()


async def test_what_ignores_sigterm_is_killed_after_the_grace(driver, tmp_path):
    code = (
        "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    )
    run = await driver.start(order(python(code)))
    ended = asyncio.ensure_future(run.ended())
    await until((tmp_path / "up").exists)
    await run.stop()
    assert (await ended).signal == signal.SIGKILL
    await run.stop()


SAVER = """
import os, pathlib, signal, time, json
def save(*_):
    answer = pathlib.Path(os.environ["GPUGRID_CHECKPOINT_ANSWER"])
    assert pathlib.Path(os.environ["GPUGRID_CHECKPOINT_REQUEST"]).exists()
    fresh = answer.with_suffix(".new")
    fresh.write_text(json.dumps({"fraction": 0.25, "location": "/data/step-1"}))
    fresh.replace(answer)
signal.signal(signal.SIGUSR1, save)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


async def test_a_checkpoint_request_is_answered_by_a_file_as_often_as_asked(driver):
    assignment = python(SAVER)
    run = await driver.start(order(assignment))
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: "up" in output(driver, assignment))
    for _ in range(2):
        answer = await run.checkpoint(PATIENCE_S)
        assert answer is not None
        assert (answer.fraction, answer.location) == (0.25, "/data/step-1")
    await run.stop()
    await ended


async def test_a_job_that_does_not_handle_the_signal_yet_is_not_killed_by_a_request_and_answers_once_it_does(
    driver, tmp_path
):
    go = tmp_path / "go"
    assignment = python(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n{SAVER}"
    )
    run = await driver.start(order(assignment))
    ended = asyncio.ensure_future(run.ended())
    assert await run.checkpoint(0.3) is None
    asked = asyncio.ensure_future(run.checkpoint(PATIENCE_S))
    await until((driver.folder_of(order(assignment)) / "checkpoint-request").exists)
    go.touch()
    assert (await asked).fraction == 0.25
    await run.stop()
    await ended


@pytest.mark.parametrize("written", [None, "{", '{"fraction": 7}', '{"fraction": "half"}'])
async def test_no_answer_or_a_senseless_one_counts_as_none_after_the_wait(driver, written):
    code = "import os, pathlib, signal, time\n"
    code += "def save(*_):\n    "
    code += (
        "pass\n"
        if written is None
        else f"pathlib.Path(os.environ['GPUGRID_CHECKPOINT_ANSWER']).write_text({written!r})\n"
    )
    code += "signal.signal(signal.SIGUSR1, save); print('up', flush=True)\nwhile True: time.sleep(0.01)"
    assignment = python(code)
    run = await driver.start(order(assignment))
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: "up" in output(driver, assignment))
    assert await run.checkpoint(0.3) is None
    await run.stop()
    await ended


async def test_a_job_that_dies_of_the_request_gives_no_answer_at_once(driver):
    assignment = python(
        "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: os._exit(9)); time.sleep(600)"
    )
    run = await driver.start(order(assignment))
    ended = asyncio.ensure_future(run.ended())
    started_s = time.monotonic()
    assert await run.checkpoint(600.0) is None
    assert time.monotonic() - started_s < PATIENCE_S
    assert (await ended).exit_code == 9


async def test_a_killed_runner_takes_its_job_along_and_the_end_is_unknown(driver):
    def never(pause_s: float) -> None:
        raise AssertionError("whoever follows the output waits for more")

    assignment = python("import time; print('begun', flush=True); time.sleep(600)")
    run = await driver.start(order(assignment))
    assert run.facts.runner_pid is not None
    await until(lambda: output(driver, assignment) == "begun\n")
    os.kill(run.facts.runner_pid, signal.SIGKILL)
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert exit.cause is FailureCause.UNKNOWN
    job_process = ProcessId(run.facts.pid or 0, run.facts.pid_ticks)
    await until(lambda: not job_process.alive())
    log = RunLog("n00", 1, 1, driver.folder_of(order(assignment)) / "output.log")
    assert b"".join(follow(log, 0, pause=never)) == b"begun\n"


async def test_an_adopted_run_tells_how_it_ended_before_and_after_the_adoption(driver, tmp_path):
    go = tmp_path / "go"
    assignment = python(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nraise SystemExit(5)"
    )
    first = await driver.start(order(assignment))
    successor = ProcessDriver(WallClock(), tmp_path, Site(nodes=("n00",)), grace_s=0.5)
    for facts in (first.facts, None):
        adopted = await successor.adopt(order(assignment), facts)
        assert adopted is not None
        assert (adopted.facts.pid, adopted.facts.runner_pid) == (first.facts.pid, first.facts.runner_pid)
    go.touch()
    for facts in (first.facts, None):
        adopted = await successor.adopt(order(assignment), facts)
        assert adopted is not None
        assert (await asyncio.wait_for(adopted.ended(), PATIENCE_S)).exit_code == 5
    await first.ended()


async def test_an_attempt_whose_runner_never_began_is_given_up_and_can_not_begin_later(driver):
    assignment = python("print('ran')")
    folder = driver.folder_of(order(assignment))
    await driver._prepare(order(assignment), folder, Conversation(folder, WallClock()))
    assert await driver.adopt(order(assignment), None) is None
    assert await driver.adopt(order(assignment), None) is None
    await driver._launch(driver.folder_of(order(assignment)))  # the runner that was still on its way
    assert not (driver.folder_of(order(assignment)) / "output.log").exists()
    run = await driver.start(order(assignment, spawn=2))
    assert (await run.ended()).cause is None


async def test_one_attempt_never_runs_twice_even_if_started_twice(driver):
    assignment = python("print('ran')")
    first = await driver.start(order(assignment))
    second = await driver.start(order(assignment))
    assert first.facts.pid == second.facts.pid
    await first.ended()
    third = await driver.start(order(assignment))
    assert (await third.ended()).cause is None
    assert output(driver, assignment) == "ran\n"


async def test_job_ids_with_slashes_and_long_ones_have_folders_of_their_own(driver):
    for job_id in ("team/a:1", "x" * 128, "/".join("y" * 64)):
        assignment = python("print('here')", job_id=job_id)
        await run_to_end(driver, assignment)
        assert output(driver, assignment) == "here\n"


async def test_rescaling_writes_the_gpus_file(driver):
    assignment = python("import time; time.sleep(600)", gpus=(0, 1), application=True)
    run = await driver.start(order(assignment))
    ended = asyncio.ensure_future(run.ended())
    path = driver.folder_of(order(assignment)) / "gpus"
    assert path.read_text() == "0,1"
    await run.rescale((1, 2, 3))
    assert path.read_text() == "1,2,3"
    await run.stop()
    await ended


async def test_a_job_finds_its_gpus_its_gang_and_its_identity(driver, monkeypatch):
    monkeypatch.setenv("GPUGRID_KAFKA", "secret")
    assignment = python(
        "import json, os; print(json.dumps(dict(os.environ)))",
        gpus=(2, 5),
        nodes=["n07", "n00"],
        node_rank=1,
        world_size=4,
        environment={"MINE": "1", "CUDA_VISIBLE_DEVICES": "9", "GPUGRID_NODE": "fake"},
        resume_fraction=0.5,
        resume_location="/data/x",
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )
    await run_to_end(driver, assignment)
    found = json.loads(output(driver, assignment))
    assert found["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"], found["RANK"], found["NODE_RANK"]) == ("4", "2", "2", "1")
    assert (found["MASTER_ADDR"], found["NNODES"]) == ("n07", "2")
    assert 20_000 <= int(found["MASTER_PORT"]) < 32_000
    assert (found["MINE"], found["GPUGRID_NODE"], found["GPUGRID_JOB_ID"]) == ("1", "n00", "a")
    assert (found["GPUGRID_RESUME_FRACTION"], found["GPUGRID_RESUME_LOCATION"]) == ("0.5", "/data/x")
    assert found["TRACEPARENT"].startswith("00-aaaa")
    assert "GPUGRID_KAFKA" not in found


def test_all_nodes_of_a_gang_agree_on_the_master(tmp_path):
    site = Site(nodes=("n00", "n01"), hosts={"n07": "10.0.0.7"})
    ports = []
    for rank, node in enumerate(("n01", "n00")):
        assignment = job("x", nodes=["n01", "n00"], node_rank=rank, world_size=2)
        found = environment_of(node, assignment, tmp_path, site, {})
        ports.append((found["MASTER_ADDR"], found["MASTER_PORT"]))
    assert ports[0] == ports[1]
    assert ports[0][0] == "127.0.0.1"
    far = environment_of("n00", job("x", nodes=["n07", "n00"], world_size=2), tmp_path, site, {})
    assert far["MASTER_ADDR"] == "10.0.0.7"


def test_gpus_are_named_by_uuid_only_where_all_are_known():
    site = Site(nodes=("n00",), uuids={"n00": ("GPU-a", "GPU-b")})
    assert site.visible("n00", [0, 1]) == "GPU-a,GPU-b"
    assert site.visible("n00", [0, 2]) == "0,2"
    assert site.visible("n00", []) == ""
