"""Whose machine has restarted holds nothing there, though its executor first spoke before telemetry did; without a restart it holds. A
gang of which a part was lost hasn't ended, though the others completed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from schemas.base import Event
from schemas.commands import ChangeRules
from schemas.decisions import Placed, Preempted
from schemas.executions import HeldGpus, JobCompleted, JobStarted, JobStopped, NodeReported, StopCause
from schemas.jobs import JobAccepted, JobSpec, Kind
from schemas.nodes import GpuState, Health, NodeStateChanged
from schemas.rules import Limits, QueueRules, Rules
from schemas.status import NodeGpus
from tests import build
from tests.simulation.system.check_rules import RulesWalk
from tests.simulation.system.evidence import Evidence
from tests.simulation.system.world import CLUSTER, START_MS

FIRST, SECOND = "n00-boot-1", "n00-boot-2"
RULES = Rules(version=1, organisation=Limits(maximum={"h100": 1}))
ORDER = ChangeRules(cluster=CLUSTER, rules=RULES, ordered_ms=START_MS)
GPU = GpuState(index=0, uuid="GPU-n00-0")
NODE = NodeStateChanged(
    node="n00", cluster=CLUSTER, pool="h100", time_ms=START_MS, health=Health.USABLE, gpus=[GPU], incarnation=1
)
BEGUN = JobStarted(
    job_id="a", attempt=1, node="n00", cluster=CLUSTER, time_ms=START_MS, wall_ms=START_MS, gpus=[0], sequence=1
)


def accepted(job_id: str) -> JobAccepted:
    spec = JobSpec(
        kind=Kind.TRAINING, priority=10, sizes=[1], team="red", user="ann", queue="default", command=["true"]
    )
    return JobAccepted(
        job_id=job_id,
        cluster=CLUSTER,
        pools=["h100"],
        spec=spec,
        submitted_ms=START_MS,
        accepted_ms=START_MS,
        digest="0",
    )


def reported(boot_id: str, *, applied: int, running: list[HeldGpus]) -> NodeReported:
    return build.reported("n00", START_MS, applied=applied, boot_id=boot_id, running=running, cluster=CLUSTER)


def decision(sequence: int, heard: list[Event], *effects: Any) -> Any:
    inputs = [build.decision_input(event, id=f"{sequence}/{number}") for number, event in enumerate(heard)]
    now_ms = START_MS + sequence
    return SimpleNamespace(sequence=sequence, now_ms=now_ms, wall_ms=now_ms, inputs=inputs, effects=effects)


def starts(job_id: str, *nodes: str) -> Placed:
    placed = [NodeGpus(node=node, gpus=[0]) for node in nodes]
    return Placed(job_id=job_id, attempt=1, pool="h100", gpus=1, placed=placed, p50_s=1.0, p90_s=1.0)


def violations(*log: Any) -> list[str]:
    return RulesWalk(cast("Evidence", cast("Any", SimpleNamespace(accepted=log, drained=False)))).walk().violations


def found(first: list[Event], later_boot: str) -> list[str]:
    """`b` starts after `a`, one GPU is allowed, and the executor of `a` has said that it has `a` in hand, of this boot."""
    again = reported(later_boot, applied=1, running=[HeldGpus(job_id="a", attempt=1, gpus=[0])])
    return violations(
        decision(1, [ORDER, accepted("a"), accepted("b"), *first], starts("a", "n00")),
        decision(2, [BEGUN, again], starts("b", "n01")),
    )


def test_an_executor_may_speak_before_telemetry_tells_of_its_node():
    hello = reported(FIRST, applied=0, running=[])
    assert found([hello, NODE], SECOND) == []
    assert found([NODE, hello], SECOND) == []


def test_without_a_restart_who_runs_there_counts():
    hello = reported(FIRST, applied=0, running=[])
    assert found([hello, NODE], FIRST) == ["decision 2: b starts: the organisation holds 2 GPUs, 1 allowed"]
    assert found([NODE, hello], FIRST) == ["decision 2: b starts: the organisation holds 2 GPUs, 1 allowed"]


def test_a_gang_has_ended_once_all_of_it_completed():
    rules = Rules(version=1, queues={"default": QueueRules(preempts=True)})
    order = ChangeRules(cluster=CLUSTER, rules=rules, ordered_ms=START_MS)
    about = {"job_id": "a", "attempt": 1, "cluster": CLUSTER, "time_ms": START_MS, "run_s": 1.0}
    completed = [JobCompleted(node=node, **about) for node in ("n00", "n01")]
    lost = JobStopped(node="n01", cause=StopCause.NODE_LOST, fraction=0.0, **about)
    takes = Preempted(job_id="a", pool="h100", placed=[], victims=[], until_ms=START_MS + 1_000)
    placed = decision(1, [order, accepted("a")], starts("a", "n00", "n01"))
    assert violations(placed, decision(2, [completed[0], lost], takes)) == []
    assert violations(placed, decision(2, completed, takes)) == [
        "decision 2: a takes a place, but may not or needs none"
    ]
