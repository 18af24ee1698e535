"""The Kubernetes driver through the official client, against a stand-in for the API server that really runs the commands."""

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
from services.executor.shell.drivers import kubernetes as kubernetes_driver
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.kube_api import KubeApi
from services.executor.shell.drivers.kubernetes import KubernetesDriver, PodShape
from services.executor.shell.drivers.port import NoLongerWantedError, Order, StartRefusedError
from services.runtime.clock import WallClock
from tests.contract.kube_server import Kubelet, KubeServer

PATIENCE_S = 60.0
TRAIN = Path(jobs.__file__).with_name("train_numpy.py")
FILE = CheckpointPolicy(mode=CheckpointMode.FILE)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeServer]:
    monkeypatch.setattr(kubernetes_driver, "ASK_S", 0.05)
    with KubeServer() as server:
        yield server


@pytest.fixture
def driver(server: KubeServer, tmp_path: Path) -> KubernetesDriver:
    return make(server, tmp_path)


def make(server: KubeServer, run_dir: Path) -> KubernetesDriver:
    shape = PodShape("example/train:1", {"hostPath": {"path": str(run_dir)}})
    api = KubeApi("jobs", server.configuration)
    return KubernetesDriver(WallClock(), run_dir, Site(nodes=("n1",)), api, shape, grace_s=1.0)


def order(code: str = "", *, job_id: str = "a", gpus: int = 2, **changed) -> Order:
    fields = {"desired": Desired.RUN, "command": [sys.executable, "-c", code], "gpus": list(range(gpus)), "attempt": 1}
    return Order("n1", Assignment(job_id=job_id, **(fields | changed)))


def output(driver: KubernetesDriver, each: Order) -> str:
    path = driver.folder_of(each) / "output.log"
    return path.read_text() if path.exists() else ""


async def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "cause", "exit_code"),
    [
        ("print('hello')", None, None),
        ("raise SystemExit(3)", FailureCause.EXIT_CODE, 3),
        ("import os; os.kill(os.getpid(), 9)", FailureCause.EXIT_CODE, 137),
    ],
)
async def test_exits_are_told_apart_as_far_as_kubernetes_does(driver, code, cause, exit_code):
    run = await driver.start(order(code))
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert (exit.cause, exit.exit_code) == (cause, exit_code)
    assert run.facts.started_ms <= exit.time_ms
    assert output(driver, order(code)) == ("hello\n" if cause is None else "")


async def test_a_job_asks_for_its_node_its_gpus_and_no_restarts(driver, server):
    run = await driver.start(order("pass", time_limit_s=100.0, environment={"MINE": "1"}))
    await asyncio.wait_for(run.ended(), PATIENCE_S)
    (manifest,) = server.jobs.values()
    pod = manifest["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert manifest["spec"]["backoffLimit"] == 0
    assert manifest["spec"]["activeDeadlineSeconds"] == 700
    assert (pod["restartPolicy"], pod["nodeSelector"]) == ("Never", {"kubernetes.io/hostname": "n1"})
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert (environment["MINE"], environment["WORLD_SIZE"], environment["GPUGRID_JOB_ID"]) == ("1", "2", "a")
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert manifest["metadata"]["annotations"] == {"gpugrid/job": "a", "gpugrid/attempt": "1"}


def training(folder: Path, **changed) -> Order:
    command = [sys.executable, str(TRAIN), "--steps", "300", "--folder", str(folder), "--pause-s", "0.005"]
    return order(job_id=folder.name, command=command, checkpoint=FILE, **changed)


async def test_a_training_job_saves_by_file_and_resumes_with_the_same_weights(driver, tmp_path):
    first, calm = training(tmp_path / "stopped"), training(tmp_path / "calm")
    undisturbed, run = await driver.start(calm), await driver.start(first)
    ended = asyncio.ensure_future(run.ended())
    answer = await run.checkpoint(PATIENCE_S)
    assert answer is not None
    run.kill()
    assert (await asyncio.wait_for(ended, PATIENCE_S)).cause is not None
    second = training(tmp_path / "stopped", attempt=2, resume_fraction=answer.fraction, resume_location=answer.location)
    resumed = await driver.start(second)
    for each in (resumed, undisturbed):
        assert (await asyncio.wait_for(each.ended(), PATIENCE_S)).cause is None
    assert f"starts at step {round(answer.fraction * 300)}" in output(driver, second)
    assert re.findall("weights .*", output(driver, second)) == re.findall("weights .*", output(driver, calm))


async def test_a_stop_gives_grace_and_returns_when_nothing_is_left(driver, server, tmp_path):
    up = tmp_path / "up"
    stubborn = "import pathlib, signal, time; signal.signal(15, signal.SIG_IGN)\n"
    stubborn += f"pathlib.Path({str(up)!r}).touch(); time.sleep(600)"
    run = await driver.start(order(stubborn))
    ended = asyncio.ensure_future(run.ended())
    await until(up.exists)
    await asyncio.wait_for(run.stop(), PATIENCE_S)
    assert (await ended).cause in (FailureCause.SIGNAL, FailureCause.EXIT_CODE)
    await until(lambda: server.pods == {})
    assert server.jobs == {}


@pytest.mark.parametrize(
    ("changed", "pull", "cause", "wanted"),
    [
        ({"command": ["no-such-binary"]}, "", FailureCause.SPAWN, "StartError"),
        ({}, "ImagePullBackOff", FailureCause.SPAWN, "ImagePullBackOff"),
        ({"command": None, "template": "x"}, "", FailureCause.PREFLIGHT, "submit it with a command"),
        ({"checkpoint": CheckpointPolicy(mode=CheckpointMode.SIGNAL)}, "", FailureCause.PREFLIGHT, 'mode "file"'),
    ],
)
async def test_what_can_not_start_fails_with_its_cause_and_leaves_nothing(driver, server, changed, pull, cause, wanted):
    server.pull = pull
    with pytest.raises(StartRefusedError) as refused:
        await driver.start(order("pass", **changed))
    assert refused.value.cause is cause
    assert wanted in refused.value.detail
    assert server.jobs == {}


async def test_a_job_whose_start_is_no_longer_wanted_does_not_wait_for_its_image(driver, server):
    server.pull = "ContainerCreating"
    each = order("pass")
    starting = asyncio.ensure_future(driver.start(each))
    await until(lambda: server.created == 1)
    each.unwanted.set()
    with pytest.raises(NoLongerWantedError):
        await asyncio.wait_for(starting, PATIENCE_S)
    assert server.jobs == {}


async def test_another_executor_finds_the_job_and_creating_it_twice_is_creating_it_once(driver, server, tmp_path):
    go = tmp_path / "go"
    each = order(
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nraise SystemExit(5)"
    )
    first = await driver.start(each)
    again = await driver.start(each)
    assert (server.created, again.facts) == (1, first.facts)
    successor = make(server, tmp_path)
    unknown = await successor.adopt(each, None)
    assert unknown is not None
    go.touch()
    for run in (first, unknown, await successor.adopt(each, first.facts)):
        assert (await asyncio.wait_for(run.ended(), PATIENCE_S)).exit_code == 5
    assert await successor.adopt(order(job_id="never"), None) is None


async def test_an_api_server_that_is_away_says_nothing_about_the_job(driver, server):
    run = await driver.start(order("import time; time.sleep(0.3)"))
    server.deaf = True
    ended = asyncio.ensure_future(run.ended())
    await until(lambda: server.asked_while_deaf >= 25)
    assert not ended.done()
    server.deaf = False
    assert (await asyncio.wait_for(ended, PATIENCE_S)).cause is None


async def test_a_job_that_somebody_deleted_is_unknown_not_completed(driver, server):
    run = await driver.start(order("import time; time.sleep(600)"))
    (name,) = server.jobs
    server.delete(name)
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert exit.cause in (FailureCause.UNKNOWN, FailureCause.EXIT_CODE)


async def test_a_start_whose_answer_was_lost_leaves_nothing_behind_when_it_is_refused(driver, server, tmp_path):
    """Whoever is told of a refusal gives its GPUs to others: an API server that is away for a while must not leave a job there."""
    server.deaf_after_create = 25
    with pytest.raises(StartRefusedError) as refused:
        await asyncio.wait_for(driver.start(order("import time; time.sleep(600)")), PATIENCE_S)
    assert refused.value.cause is FailureCause.PREFLIGHT
    assert (server.created, server.jobs) == (1, {})


async def test_an_api_server_that_is_away_while_a_job_begins_does_not_make_it_fail(driver, server):
    server.pull = "ContainerCreating"
    starting = asyncio.ensure_future(driver.start(order("pass")))
    await until(lambda: server.created == 1)
    server.deaf = True
    await until(lambda: server.asked_while_deaf >= 25)
    assert not starting.done()
    with server.lock:
        (pod,) = server.pods.values()
        server.kubelets[pod["metadata"]["name"]] = Kubelet(pod)
    server.deaf = False
    run = await asyncio.wait_for(starting, PATIENCE_S)
    assert (await asyncio.wait_for(run.ended(), PATIENCE_S)).cause is None


async def test_the_end_of_a_job_whose_output_nobody_gives_is_known(driver, server, monkeypatch):
    monkeypatch.setattr(kubernetes_driver, "LOG_TRIES_MAX", 3)
    server.logless = True
    run = await driver.start(order("raise SystemExit(4)"))
    assert (await asyncio.wait_for(run.ended(), PATIENCE_S)).exit_code == 4


@pytest.mark.parametrize(
    ("kind", "reason", "cause"),
    [
        ("Failed", "DeadlineExceeded", FailureCause.UNKNOWN),
        ("Failed", "BackoffLimitExceeded", FailureCause.UNKNOWN),
        ("Complete", "CompletionsReached", None),
    ],
)
async def test_a_job_whose_pods_were_deleted_ends_as_kubernetes_says(driver, server, kind, reason, cause):
    run = await driver.start(order("import time; time.sleep(600)"))
    with server.lock:
        (job,) = server.jobs.values()
        condition = {"type": kind, "status": "True", "reason": reason, "message": "so it is"}
        job["status"] = {"conditions": [condition]}
        server.pods.clear()
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert exit.cause is cause
    assert cause is None or reason in exit.detail


async def test_an_evicted_pod_is_over_though_its_container_says_nothing(driver, server):
    run = await driver.start(order("import time; time.sleep(600)"))
    with server.lock:
        (pod,) = server.pods.values()
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on disk"}
    exit = await asyncio.wait_for(run.ended(), PATIENCE_S)
    assert exit.cause is FailureCause.UNKNOWN
    assert "Evicted: low on disk" in exit.detail
