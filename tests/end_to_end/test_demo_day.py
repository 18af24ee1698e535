"""The demo as a person starts it: a short day on a real Kafka ends with tables, a report and nothing left; so does Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deploy.local import stack_file

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]
ENDS_WITHIN_S = 600.0
"""A cold start compiles kernels; alone and warm the whole test takes half a minute."""

SCRIPT = """
import sys
from pathlib import Path
from services.replay.demo import DemoOptions, run_demo
from services.replay.simulate import DayOptions
folder = Path(sys.argv[1])
day = DayOptions(seed=1, hours=1.0, gpus=32)
sys.exit(run_demo(DemoOptions(day=day, speed=360.0, ui=False, json_path=folder / "demo.json", run_dir=folder / "run")))
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    output = (folder / "output").open("wb")
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def wait_for(condition, what: str) -> None:
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.1)


def nothing_left(folder: Path) -> None:
    mine = [one for one in psutil.process_iter() if str(folder) in _environment(one)]
    assert not mine, mine
    assert not (folder / "run" / stack_file.FILE_NAME).exists()


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("GPUGRID_RUN_DIR", "")
    except psutil.Error:
        return ""


def test_a_short_day_ends_with_a_report(tmp_path: Path) -> None:
    demo = start(tmp_path)
    assert demo.wait(ENDS_WITHIN_S) == 0, (tmp_path / "output").read_text()
    report = json.loads((tmp_path / "demo.json").read_bytes())
    ours = report["outcomes"]["gpugrid"]
    assert sorted(report["outcomes"]) == ["fifo", "gpugrid", "priority_backfill"]
    assert ours["completed"] > 0
    assert ours["gpus_max"] <= 32
    assert (report["decisions_rejected"], report["dead_letters"]) == (0, 0)
    assert (report["decisions_verified"], report["violations"]) == (report["decisions"], [])
    assert report["latency_ms"]["submit → decided"]["jobs"] == ours["jobs"]
    assert "waiting, by" in (tmp_path / "output").read_text()
    assert not (tmp_path / "run").exists()
    nothing_left(tmp_path)


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, moment: str) -> None:
    demo = start(tmp_path)
    output = tmp_path / "output"
    word = "kafka: starting" if moment == "starting" else "of the day:"
    wait_for(lambda: word in output.read_text() or demo.poll() is not None, word)
    os.kill(demo.pid, signal.SIGINT)
    assert demo.wait(ENDS_WITHIN_S) == 130, output.read_text()
    assert "nothing is left running" in output.read_text()
    nothing_left(tmp_path)
