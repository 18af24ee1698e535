"""Runs as Jobs of a Kubernetes cluster: gpugrid says which node and how many GPUs, the device plugin which of them.

Owns: one Job per attempt and node, never restarted by Kubernetes (`backoffLimit` 0; restarts are gpugrid's), under a name that follows from
the attempt, so that creating it twice is creating it once. The run folder is mounted into the pod at the same path: checkpoints are
requested and answered there, by file. Refuses: jobs that want a signal (the API can't send one), and believing silence. Read next:
`kube_api.py`, `docs/executors.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from schemas.executions import FailureCause
from schemas.jobs import CheckpointMode
from services.executor.core.journal import RunFacts
from services.executor.core.reports import Exit, Progress
from services.executor.shell.drivers.conversation import NEWS_POLL_S, Conversation
from services.executor.shell.drivers.environment import Site, environment_of, first_port
from services.executor.shell.drivers.errands import Errands
from services.executor.shell.drivers.kube_api import KubeApi, KubeError
from services.executor.shell.drivers.port import Answer, NoLongerWantedError, Order, Prepared, StartRefusedError
from services.executor.shell.drivers.process import GRACE_S, domain_ms
from services.executor.shell.drivers.refusals import preflight, refused
from services.executor.shell.drivers.run_folder import LOG_FILE, folder_of, mark_over, write
from services.runtime.clock import Clock

ASK_S = 1.0
"""Between two questions about one Job."""
BEGIN_WAIT_S = 300.0
"""For scheduling and pulling the image; a Job that has not begun by then is taken back."""
LIMIT_MARGIN_S = 600.0
"""Kubernetes' own deadline lies that far behind the job's limit, for its checkpoint and its end."""
KEPT_S = 72 * 3600
"""Ended Jobs stay that long: as the run folders, and longer than an executor is away, which learns of an end from them alone."""
LOG_TRIES_MAX = 30
"""Times that the output of an ended pod is asked for: a node that is gone gives none, and the end counts all the same."""
HOPELESS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
        "ContainerCannotRun",
        "StartError",
    }
)
"""Reasons for which a container waits and which waiting doesn't mend."""
SIGTERM = 15

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodShape:
    """What pods have in common. `volume`: as in a pod's spec, must hold the run folders at `run_dir`."""

    image: str
    volume: dict[str, Any]
    gpu_resource: str = "nvidia.com/gpu"


class KubernetesRun:
    """One Job, seen through the API and its folder."""

    def __init__(self, driver: KubernetesDriver, order: Order, facts: RunFacts) -> None:
        self.facts = facts
        self._driver = driver
        self._folder = driver.folder_of(order)
        self._talk = Conversation(self._folder, driver.clock)
        self._gone = asyncio.Event()
        self._deleted = False
        self._log_tries = 0

    async def ended(self) -> Exit:
        while True:
            found = await self._end()
            if found is not None:
                self._gone.set()
                mark_over(self._folder)
                return found
            await self._driver.clock.sleep_wall(ASK_S)

    async def _end(self) -> Exit | None:
        """How it ended; None while it runs, or nothing is known."""
        try:
            pods = await self._driver.api.pods(self.facts.name)
            finished = next((done for pod in pods if (done := _terminated(pod)) is not None), None)
            if finished is not None:
                await self._keep_log(pods)
                return self._exit_of(finished)
            over = next((why for pod in pods if (why := _over(pod))), "")
            if pods and not over:
                return None
            job = None if pods else await self._driver.api.job(self.facts.name)
        except KubeError:
            return None  # silence is not an end
        now_ms = self._driver.clock.now_ms()
        if job is not None:
            came = _condition(job)
            if came is None:
                return None
            if came.type == "Complete":
                return Exit(now_ms)
            over = f"over ({came.reason}: {came.message})"
        if self._deleted:
            return Exit(now_ms, FailureCause.SIGNAL, signal=SIGTERM, detail="its Job was deleted on request")
        detail = over or "gone"
        return Exit(
            now_ms, FailureCause.UNKNOWN, detail=f"Job {self.facts.name} is {detail}, and nobody knows how it ended"
        )

    def _exit_of(self, done: Any) -> Exit:
        clock = self._driver.clock
        time_ms = clock.now_ms()
        if done.finished_at is not None:
            time_ms = domain_ms(clock, int(done.finished_at.timestamp() * 1000), at_least_ms=self.facts.started_ms)
        if done.exit_code == 0:
            return Exit(time_ms)
        detail = f"{done.reason or 'ended'}, exit code {done.exit_code} {done.message or ''}".strip()
        if done.signal:
            return Exit(time_ms, FailureCause.SIGNAL, signal=done.signal, detail=detail)
        return Exit(time_ms, FailureCause.EXIT_CODE, exit_code=done.exit_code, detail=detail)

    async def _keep_log(self, pods: list[Any]) -> None:
        """Raises KubeError as long as it is worth another try."""
        for pod in pods:
            try:
                text = await self._driver.api.log(pod.metadata.name)
                write(self._folder / LOG_FILE, text.encode())
            except KubeError:
                self._log_tries += 1
                if self._log_tries < LOG_TRIES_MAX:
                    raise
            except OSError:
                return  # a full disk takes the output, not the end

    async def checkpoint(self, wait_s: float) -> Answer | None:
        return await self._talk.ask(_asked_by_file, wait_s, self._gone)

    def unheard(self) -> Answer | Progress | None:
        return self._talk.unheard()

    async def news(self) -> Answer | Progress:
        while (said := self._talk.by_itself()) is None:
            await self._driver.clock.sleep_wall(NEWS_POLL_S)
        return said

    async def stop(self) -> None:
        """Kubernetes ends its pods: SIGTERM, the grace, SIGKILL."""
        self._deleted = True
        while not self._gone.is_set():
            with contextlib.suppress(KubeError):
                await self._driver.api.delete(self.facts.name)
            await asyncio.wait((asyncio.ensure_future(self._gone.wait()),), timeout=self._driver.grace_s + ASK_S)

    def kill(self) -> None:
        self._deleted = True
        self._driver.errands.spawn(self._kill())

    async def _kill(self) -> None:
        with contextlib.suppress(KubeError):
            for pod in await self._driver.api.pods(self.facts.name):
                await self._driver.api.delete_pod(pod.metadata.name)
            await self._driver.api.delete(self.facts.name)

    async def rescale(self, gpus: tuple[int, ...]) -> None:
        """The number of GPUs of a pod is fixed: an application is told what it may use of them."""
        self._talk.tell_gpus(",".join(str(gpu) for gpu in range(len(gpus))))

    async def let_go(self, wait_s: float) -> None:
        await self._talk.gpus_acknowledged(wait_s, self._gone)

    async def serves(self) -> bool:
        """As Kubernetes sees it."""
        try:
            pods = await self._driver.api.pods(self.facts.name)
        except KubeError:
            return False
        return any(status.ready for pod in pods for status in pod.status.container_statuses or [])


class KubernetesDriver:
    """Creates and finds Jobs. `run_dir` is on the volume that pods mount; node ids are the nodes' host names."""

    def __init__(
        self, clock: Clock, run_dir: Path, site: Site, api: KubeApi, shape: PodShape, *, grace_s: float = GRACE_S
    ) -> None:
        self.clock = clock
        self.api = api
        self.grace_s = grace_s
        self._site = site
        self._shape = shape
        self._run_dir = run_dir.resolve()
        self.errands = Errands()

    def boot_id(self) -> str:
        """Jobs survive the machine of the executor."""
        return "kubernetes"

    def folder_of(self, order: Order) -> Path:
        return folder_of(self._run_dir, order)

    async def prepare(self, order: Order) -> Prepared:
        """What is on the node, Kubernetes looks after; a port can't be tried from here."""
        _check(order)
        return Prepared(port=first_port(order.assignment))

    async def start(self, order: Order) -> KubernetesRun:
        folder = self.folder_of(order)
        name = _name(order)
        try:
            _check(order)
            folder.mkdir(parents=True, exist_ok=True)
            await self.api.create(self._manifest(order, folder, name))
        except KubeError as error:
            if not error.is_refusal:
                await self._take_back(name)  # it may have been created, and only the answer been lost
            raise StartRefusedError(FailureCause.PREFLIGHT, str(error)) from error
        except OSError as error:
            raise refused(error, folder) from error
        return KubernetesRun(self, order, RunFacts(started_ms=await self._begun(order), name=name))

    async def reap(self, node: str, known: Sequence[Order]) -> list[str]:
        return []

    async def adopt(self, order: Order, facts: RunFacts | None) -> KubernetesRun | None:
        name = _name(order)
        while facts is None:
            try:
                if await self.api.job(name) is None:
                    return None
            except KubeError:
                await self.clock.sleep_wall(ASK_S)  # whether it is there has to be certain
                continue
            try:
                facts = RunFacts(started_ms=await self._begun(order), name=name)
            except StartRefusedError:
                return None
        return KubernetesRun(self, order, facts)

    async def _begun(self, order: Order) -> int:
        """When its container began, in domain time. Raises StartRefusedError."""
        name = _name(order)
        until_s = self.clock.wall_s() + BEGIN_WAIT_S
        while True:
            try:
                pods = await self.api.pods(name)
            except KubeError:
                await self.clock.sleep_wall(ASK_S)
                continue  # silence is neither a beginning nor a refusal
            for pod in pods:
                began_ms = _began_wall_ms(pod)
                if began_ms is not None:
                    return domain_ms(self.clock, began_ms)
            if order.unwanted.is_set():
                await self._take_back(name)
                raise NoLongerWantedError
            why = next((reason for pod in pods if (reason := _waits_for(pod))), "")
            if why.partition(":")[0] in HOPELESS or self.clock.wall_s() >= until_s:
                await self._take_back(name)
                cause = FailureCause.SPAWN if why else FailureCause.PREFLIGHT
                raise StartRefusedError(cause, f"Job {name} did not begin: {why or 'no node took its pod'}")
            await self.clock.sleep_wall(ASK_S)

    async def _take_back(self, name: str) -> None:
        """Return when it is certain that there is none: whoever is told of a refusal gives its GPUs to others."""
        said = ""
        while True:
            try:
                await self.api.delete(name)
            except KubeError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("Job %s can't be taken back, and its GPUs are kept until it is: %s", name, said)
                await self.clock.sleep_wall(ASK_S)
            else:
                return

    def _manifest(self, order: Order, folder: Path, name: str) -> dict[str, Any]:
        assignment = order.assignment
        environment = environment_of(order.node, assignment, folder, self._site, {}, port=order.port)
        for chosen_elsewhere in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            environment.pop(chosen_elsewhere)
        container = {
            "name": "job",
            "image": self._shape.image,
            "command": assignment.command,
            "workingDir": assignment.working_directory or str(folder),
            "env": [{"name": each, "value": value} for each, value in environment.items()],
            "resources": {"limits": {self._shape.gpu_resource: str(len(assignment.gpus))}} if assignment.gpus else {},
            "volumeMounts": [{"name": "run", "mountPath": str(self._run_dir)}],
        }
        pod = {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": order.node},
            "terminationGracePeriodSeconds": max(1, round(self.grace_s)),
            "containers": [container],
            "volumes": [{"name": "run", **self._shape.volume}],
        }
        spec: dict[str, Any] = {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": {"gpugrid": "run"}}, "spec": pod},
        }
        if assignment.time_limit_s > 0 and not assignment.application:
            spec["activeDeadlineSeconds"] = round(assignment.time_limit_s + LIMIT_MARGIN_S)
        about = {"gpugrid/job": assignment.job_id, "gpugrid/attempt": str(assignment.attempt)}
        metadata = {"name": name, "labels": {"gpugrid": "run"}, "annotations": about}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _check(order: Order) -> None:
    """Raises StartRefusedError for what can't be done through the API. A working directory may exist in the image only."""
    assignment = order.assignment
    if not assignment.command:
        preflight(assignment)
    if assignment.checkpoint.mode is CheckpointMode.SIGNAL:
        detail = 'under Kubernetes a checkpoint is requested by file: submit the job with checkpoint mode "file"'
        raise StartRefusedError(FailureCause.PREFLIGHT, detail)


async def _asked_by_file() -> bool:
    return True


def _states(pod: Any) -> list[Any]:
    return [status.state for status in pod.status.container_statuses or [] if status.state is not None]


def _terminated(pod: Any) -> Any:
    return next((state.terminated for state in _states(pod) if state.terminated is not None), None)


def _over(pod: Any) -> str:
    """Why a pod is over though its container doesn't say how it ended (evicted, its node gone); "" if it isn't."""
    if pod.status.phase not in ("Failed", "Succeeded"):
        return ""
    return f"over ({pod.status.reason or pod.status.phase}: {pod.status.message})"


def _condition(job: Any) -> Any:
    """What Kubernetes says of a Job that is over; its pods may have been deleted since."""
    conditions = (job.status.conditions or []) if job.status is not None else []
    return next((each for each in conditions if each.type in ("Failed", "Complete") and each.status == "True"), None)


def _began_wall_ms(pod: Any) -> int | None:
    for state in _states(pod):
        began = state.running or state.terminated
        if began is not None and began.started_at is not None:
            return int(began.started_at.timestamp() * 1000)
    return None


def _waits_for(pod: Any) -> str:
    """Why its container has not begun; also one that ended without having begun (its command isn't there, for example)."""
    for state in _states(pod):
        held_up = state.waiting or state.terminated
        if held_up is not None and held_up.reason:
            return f"{held_up.reason}: {held_up.message or ''}".strip()
    return ""


def _name(order: Order) -> str:
    """Of the Job: the same for the same attempt, whoever creates it."""
    assignment = order.assignment
    key = f"{order.node}/{assignment.job_id}/{assignment.attempt}/{order.spawn}"
    return f"gpugrid-{sha256(key.encode()).hexdigest()[:20]}"
