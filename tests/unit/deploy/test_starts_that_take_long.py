"""A start that is late but comes on goes on; one that says nothing new is ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.managed import PROGRESS_WAIT_S, ManagedProcess
from deploy.local.specification import ProcessSpec


@pytest.fixture
def started(tmp_path: Path):
    made: list[ManagedProcess] = []

    def start(progress: Callable[[], str] | None) -> ManagedProcess:
        code = (sys.executable, "-c", "import time; time.sleep(600)")
        spec = ProcessSpec("slow", code, ready=lambda: False, ready_wait_s=100.0, stop_grace_s=20.0, progress=progress)
        managed = ManagedProcess(spec, tmp_path / "slow.log")
        managed.start(0.0)
        made.append(managed)
        return managed

    yield start
    for managed in made:
        managed.kill()


def test_a_start_goes_on_as_long_as_it_says_something_new(started):
    said = ["10 records"]
    managed = started(lambda: said[0])
    managed.tick(100.0)
    managed.tick(101.0)
    assert managed.state == "starting"
    for minute in range(1, 5):
        said[0] = f"{minute}0 more"
        managed.tick(101.0 + minute * (PROGRESS_WAIT_S + 1))
        assert managed.state == "starting"
    managed.tick(101.0 + 5 * (PROGRESS_WAIT_S + 1))
    assert (managed.state, managed.reason.partition(":")[0]) == ("backing-off", "was not ready within 100 s")


@pytest.mark.parametrize("progress", [None, lambda: ""], ids=["none is told", "nobody answers"])
def test_a_start_that_says_nothing_is_ended_in_time(started, progress: Callable[[], str] | None):
    managed = started(progress)
    managed.tick(101.0)
    assert managed.state == "backing-off"
