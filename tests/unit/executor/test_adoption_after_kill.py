"""kill -9 of a real executor process: its jobs go on, the next one adopts them and learns how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.placements import Assignment, Desired, NodePlaced

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


class Stage:
    """A folder, and executors that come and go on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.go = folder / "go"
        self.executors: list[subprocess.Popen[bytes]] = []

    def place(self, *assignments: Assignment, sequence: int = 1) -> None:
        placed = NodePlaced(
            node="n00", cluster="c0", pool="h100", sequence=sequence, epoch=1, time_ms=0, assignments=list(assignments)
        )
        (self.folder / "placement.json").write_bytes(msgspec.json.encode(placed))

    def executor(self, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("executor_alone.py")), str(self.folder)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
        self.executors.append(process)
        return process

    def said(self) -> list[dict]:
        path = self.folder / "said.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ids(self) -> list[str]:
        return [line["id"] for line in self.said() if "/n00/" in line["id"] and "reported" not in line["id"]]

    def ran(self) -> list[str]:
        """One line per time the job's first instruction ran."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited too long; said {self.ids()}"
            time.sleep(0.02)

    def job(self, job_id: str, gpu: int, exit_code: int) -> Assignment:
        code = (
            "import os, pathlib, time\n"
            f"with open({str(self.folder / 'ran')!r}, 'a') as ran: ran.write({job_id!r} + ' ' + str(os.getpid()) + '\\n')\n"
            f"while not pathlib.Path({str(self.go)!r}).exists(): time.sleep(0.01)\n"
            f"raise SystemExit({exit_code})"
        )
        return Assignment(
            job_id=job_id, attempt=1, desired=Desired.RUN, gpus=[gpu], command=[sys.executable, "-c", code]
        )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for process in stage.executors:
        process.kill()
        process.wait()
    stage.go.touch()
    for line in stage.ran():
        pid = int(line.split()[1])
        stage.until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("ends_while_dead", [False, True])
def test_jobs_outlive_a_killed_executor_and_their_exit_codes_are_learned(stage, ends_while_dead):
    stage.place(stage.job("good", 0, 0), stage.job("bad", 1, 7))
    first = stage.executor()
    stage.until(lambda: len(stage.ids()) == 2 and len(stage.ran()) == 2)
    killed(first)
    if ends_while_dead:
        stage.go.touch()
        for line in stage.ran():
            pid = int(line.split()[1])
            stage.until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    second = stage.executor()
    stage.go.touch()
    stage.until(lambda: len(stage.ids()) == 4)
    killed(second)
    assert sorted(line.split()[0] for line in stage.ran()) == ["bad", "good"]
    assert sorted(stage.ids()) == [
        "bad/1/n00/failed",
        "bad/1/n00/started",
        "good/1/n00/completed",
        "good/1/n00/started",
    ]
    (failed,) = [line["event"] for line in stage.said() if line["type"] == "job.failed.v1"]
    assert (failed["cause"], failed["exit_code"]) == ("exit_code", 7)
    reports = [line["event"] for line in stage.said() if line["type"] == "node.reported.v1"]
    assert reports[0]["boot_id"] == reports[1]["boot_id"]
    assert sorted(held["job_id"] for held in reports[1]["running"]) == ["bad", "good"]


def test_executors_killed_at_any_moment_of_a_start_never_run_a_job_twice(stage):
    stage.place(*(stage.job(f"j{gpu}", gpu, 0) for gpu in range(4)))
    for delay_s in (0.0, 0.01, 0.03, 0.06, 0.1):
        process = stage.executor()
        stage.until(
            lambda process=process: (stage.folder / "run" / "n00" / "journal").exists() or process.poll() is not None
        )
        time.sleep(delay_s)  # not to wait for something: to be somewhere else in the start each time
        killed(process)
    last = stage.executor()
    stage.until(lambda: len(set(stage.ids())) == 4 and len(stage.ran()) == 4)
    stage.go.touch()
    stage.until(lambda: len(set(stage.ids())) == 8)
    killed(last)
    assert sorted(line.split()[0] for line in stage.ran()) == ["j0", "j1", "j2", "j3"]


def test_an_orderly_stop_ends_its_jobs_only_where_told_to(stage):
    stage.place(stage.job("a", 0, 0))
    first = stage.executor()
    stage.until(lambda: len(stage.ids()) == 1 and len(stage.ran()) == 1)
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    pid = int(stage.ran()[0].split()[1])
    assert Path(f"/proc/{pid}").exists()
    second = stage.executor(STOP_JOBS="1")
    stage.until(lambda: len(stage.said()) == 3)
    second.terminate()
    assert second.wait(PATIENCE_S) == 0
    assert not Path(f"/proc/{pid}").exists()
    assert stage.ids() == ["a/1/n00/started", "a/1/n00/stopped"]


@pytest.mark.parametrize("placed", [False, True])
def test_what_a_lost_journal_left_alive_is_taken_over_if_it_is_still_placed_and_ended_if_not(stage, placed):
    stage.place(stage.job("a", 0, 0))
    first = stage.executor()
    stage.until(lambda: len(stage.ids()) == 1 and len(stage.ran()) == 1)
    killed(first)
    (stage.folder / "run" / "n00" / "journal").unlink()
    pid = int(stage.ran()[0].split()[1])
    if not placed:
        stage.place(sequence=2)
    second = stage.executor()
    if placed:
        stage.until(lambda: len(stage.said()) == 4)
        assert Path(f"/proc/{pid}").exists()
        stage.go.touch()
        stage.until(lambda: "a/1/n00/completed" in stage.ids())
        assert len(stage.ran()) == 1
    else:
        stage.until(lambda: not Path(f"/proc/{pid}").exists())
    killed(second)


def test_two_executors_can_not_serve_one_node(stage):
    stage.place()
    stage.executor()
    stage.until(lambda: len(stage.said()) == 1)
    assert stage.executor().wait(PATIENCE_S) != 0
