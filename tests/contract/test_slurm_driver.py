"""The Slurm driver on a real Slurm: starts, exits, signals, checkpoints, adoption, a controller that is away, and full nodes."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.executions import FailureCause
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.placements import Assignment, Desired
from services.executor import jobs
from services.executor.shell.drivers import slurm as slurm_driver
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.port import NoLongerWantedError, Order, StartRefusedError
from services.executor.shell.drivers.slurm import SlurmDriver
from services.runtime.clock import WallClock
from tests.contract.slurm_cluster import SlurmCluster, why_not

CLOCK_TICK_MS = 50
"""Of two looks at a clock, on a machine that is busy with much else."""
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}")]
PATIENCE_S = 60.0
TRAIN = Path(jobs.__file__).with_name("train_numpy.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def driver(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmDriver:
    """With short waits: what they are for is tried, not how long they are."""
    monkeypatch.setattr(slurm_driver, "LAST_NOTE_WAIT_S", 1.0)
    monkeypatch.setattr(slurm_driver, "ASK_S", 0.5)
    return SlurmDriver(WallClock(), tmp_path, Site(nodes=("n1", "n2")), cluster.slurm, grace_s=1.0)


def order(code: str, *, job_id: str = "a", gpus: int = 2, node: str = "n1", **changed) -> Order:
    fields = {"desired": Desired.RUN, "command": [sys.executable, "-c", code], "gpus": list(range(gpus)), "attempt": 1}
    return Order(node, Assignment(job_id=job_id, **(fields | changed)))


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.02)


def output(driver: SlurmDriver, order: Order) -> str:
    path = driver.folder_of(order) / "output.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("code", "cause", "exit_code", "number"),
    [
        ("pass", None, None, None),
        ("raise SystemExit(3)", FailureCause.EXIT_CODE, 3, None),
        ("import os; os.kill(os.getpid(), 9)", FailureCause.SIGNAL, None, 9),
    ],
)
async def test_exits_are_told_apart(driver, code, cause, exit_code, number):
    run = await driver.start(order(code))
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert (exit.cause, exit.exit_code, exit.signal) == (cause, exit_code, number)


async def test_slurm_chooses_the_gpus_and_keeps_jobs_apart(driver):
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['SLURMD_NODENAME'], flush=True); time.sleep(600)"
    orders = [order(code, job_id=f"j{number}", node="n2", gpus=4) for number in range(2)]
    runs = [await driver.start(each) for each in orders]
    await until(lambda: all("n2" in output(driver, each) for each in orders))
    seen = sorted(output(driver, each).split()[0] for each in orders)
    assert seen == ["0,1,2,3", "4,5,6,7"]
    for run in runs:
        ended = asyncio.ensure_future(run.ended())
        await run.stop()
        assert (await asyncio.wait_for(ended, PATIENCE_S)).signal == 15


async def test_what_ignores_sigterm_is_killed(driver):
    each = order("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)")
    run = await driver.start(each)
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: "up" in output(driver, each))
    await asyncio.wait_for(run.stop(), PATIENCE_S)
    exit = await ended
    assert exit.cause in (FailureCause.UNKNOWN, FailureCause.SIGNAL)


def training(folder: Path, **changed) -> Order:
    command = [sys.executable, str(TRAIN), "--steps", "400", "--folder", str(folder), "--pause-s", "0.005"]
    return order(
        "", job_id=folder.name, command=command, checkpoint=CheckpointPolicy(mode=CheckpointMode.SIGNAL), **changed
    )


async def test_a_training_job_saves_on_request_and_resumes_with_the_same_weights(driver, tmp_path):
    first, calm = training(tmp_path / "stopped"), training(tmp_path / "calm", node="n2")
    undisturbed = await driver.start(calm)
    run = await driver.start(first)
    ended = asyncio.ensure_future(run.ended())
    answer = await run.checkpoint(PATIENCE_S)
    assert answer is not None
    run.kill()
    await asyncio.wait_for(ended, PATIENCE_S)
    second = training(tmp_path / "stopped", attempt=2, resume_fraction=answer.fraction, resume_location=answer.location)
    resumed = await driver.start(second)
    assert (await asyncio.wait_for(resumed.ended(), PATIENCE_S)).cause is None
    assert (await asyncio.wait_for(undisturbed.ended(), PATIENCE_S)).cause is None
    assert f"starts at step {round(answer.fraction * 400)}" in output(driver, second)
    assert re.findall("weights .*", output(driver, second)) == re.findall("weights .*", output(driver, calm))


async def test_another_executor_finds_the_job_and_its_end(driver, cluster, tmp_path):
    go = tmp_path / "go"
    each = order(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nraise SystemExit(5)"
    )
    first = await driver.start(each)
    successor = SlurmDriver(WallClock(), tmp_path, Site(nodes=("n1",)), cluster.slurm)
    known = await successor.adopt(each, first.facts)
    unknown = await successor.adopt(each, None)
    assert known is not None
    assert unknown is not None
    # When it began is told by Slurm in wall time and turned into domain time at each look: the clock may tick in between.
    assert unknown.facts.name == first.facts.name
    assert abs(unknown.facts.started_ms - first.facts.started_ms) <= CLOCK_TICK_MS
    go.touch()
    for run in (known, unknown):
        assert (await asyncio.wait_for(run.ended(), PATIENCE_S)).exit_code == 5
    never = order("pass", job_id="never")
    assert await successor.adopt(never, None) is None


async def test_a_controller_that_is_away_says_nothing_about_the_job(driver, cluster, tmp_path):
    go = tmp_path / "go"
    each = order(f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    run = await driver.start(each)
    asked = []
    state = run._state

    async def counted() -> str:
        found = await state()
        asked.append(found)
        return found

    run._state = counted
    ended = asyncio.ensure_future(run.ended())
    cluster.stop("slurmctld")
    await until(lambda: asked.count("") >= 1)
    assert not ended.done()
    cluster.start_controller()
    go.touch()
    assert (await asyncio.wait_for(ended, PATIENCE_S)).cause is None


async def test_a_job_that_slurm_lets_wait_is_taken_back_and_can_not_begin_later(driver, monkeypatch):
    blocker = order("import time; time.sleep(600)", job_id="blocker", gpus=8)
    holding = await driver.start(blocker)
    ended = asyncio.ensure_future(holding.ended())
    monkeypatch.setattr(slurm_driver, "PENDING_WAIT_S", 1.0)
    late = order("print('ran')", job_id="late", gpus=8)
    with pytest.raises(StartRefusedError) as refused:
        await driver.start(late)
    assert refused.value.cause is FailureCause.PREFLIGHT
    assert "PENDING" in refused.value.detail
    monkeypatch.undo()
    cancelled = order("print('ran')", job_id="cancelled", gpus=8)
    starting = asyncio.ensure_future(driver.start(cancelled))
    await until((driver.folder_of(cancelled) / "slurm-job").exists)
    cancelled.unwanted.set()
    with pytest.raises(NoLongerWantedError):
        await asyncio.wait_for(starting, PATIENCE_S)
    assert await driver.slurm.named(slurm_driver._name(cancelled)) == []
    holding.kill()
    await asyncio.wait_for(ended, PATIENCE_S)
    assert (output(driver, late), output(driver, cancelled)) == ("", "")


@pytest.mark.parametrize(
    ("changed", "cause", "wanted"),
    [
        ({"command": ["no-such-binary"]}, FailureCause.SPAWN, "no-such-binary"),
        ({"working_directory": "/no/such"}, FailureCause.WORKING_DIRECTORY, "/no/such"),
        ({"gpus": 99}, FailureCause.PREFLIGHT, "sbatch"),
    ],
)
async def test_what_can_not_start_fails_with_its_cause(driver, changed, cause, wanted):
    with pytest.raises(StartRefusedError) as refused:
        await driver.start(order("pass", job_id="bad", **changed))
    assert refused.value.cause is cause
    assert wanted in refused.value.detail


async def test_a_job_whose_number_nobody_wrote_down_is_found_by_name_and_others_are_left_alone(
    cluster, driver, tmp_path
):
    """Whoever submitted it died before noting it; to Slurm's commands no number means every job."""
    go = tmp_path / "go"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nraise SystemExit(6)"
    other = await driver.start(order("import time; time.sleep(600)", job_id="other", gpus=1))
    await driver.start(order(code, job_id="mine", gpus=1))
    mine = order(code, job_id="mine", gpus=1)
    (driver.folder_of(mine) / "slurm-job").unlink()
    adopted = await driver.adopt(mine, None)
    assert adopted is not None
    assert adopted.facts.name not in ("", other.facts.name)
    go.touch()
    assert (await asyncio.wait_for(adopted.ended(), PATIENCE_S)).exit_code == 6
    (driver.folder_of(mine) / "slurm-job").unlink(missing_ok=True)
    (driver.folder_of(mine) / "exit.json").unlink()
    late = await driver.adopt(mine, None)
    assert late is not None
    ended = asyncio.ensure_future(late.ended())
    await late._cancel()
    assert (await asyncio.wait_for(ended, PATIENCE_S)).cause is FailureCause.UNKNOWN
    assert (await driver.slurm.state(other.facts.name)).startswith("RUNNING")
    ended = asyncio.ensure_future(other.ended())
    await other.stop()
    await ended


@pytest.mark.parametrize("begins_before", [False, True], ids=["waits", "runs"])
async def test_a_submission_whose_answer_was_lost_is_not_left_to_itself(driver, monkeypatch, tmp_path, begins_before):
    """Either nothing of it can begin any more, or the run is known."""
    submit = driver.slurm.submit.__func__
    each = order("import time; time.sleep(600)", gpus=1)
    claim = driver.folder_of(each) / "claim"

    async def lost(self, script: Path, options: list[str]) -> str:
        number = await submit(self, script, options if begins_before else [*options, "--hold"])
        if begins_before:
            await until(claim.exists)
        raise slurm_driver.SlurmError(f"sbatch did not answer ({number})")

    monkeypatch.setattr(slurm_driver.Slurm, "submit", lost)
    if not begins_before:
        with pytest.raises(StartRefusedError) as refused:
            await driver.start(each)
        assert refused.value.cause is FailureCause.PREFLIGHT
        assert await driver.slurm.named(slurm_driver._name(each)) == []
        return
    run = await asyncio.wait_for(driver.start(each), PATIENCE_S)
    ended = asyncio.ensure_future(run.ended())
    await run.stop()
    assert (await asyncio.wait_for(ended, PATIENCE_S)).signal == 15
