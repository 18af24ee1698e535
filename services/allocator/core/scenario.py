"""`scenario.v1` in, `plan.v1` out: the documents, their checks, and the way to and from the planner's arrays.

Every refusal is a `ScenarioError` with the field's path and the reason. Limits are generous but finite, so that an
absurd file is refused before it costs memory.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from services.allocator.core.fixed_point import PRIORITY_ONE
from services.allocator.core.plan import Plan
from services.allocator.core.problem import (
    STEPS_MAX,
    Application,
    Option,
    Problem,
    QueuedJob,
    RunningBlock,
    build_problem,
)
from services.allocator.core.reasons import Reason
from services.allocator.core.topology import size_class
from services.allocator.core.value import completed, unmet_gpu_steps, utilization, value_of

GPUS_MAX = 65_536
JOBS_MAX = 200_000
APPS_MAX = 4_096
PRIORITY_MAX = 10_000
DURATION_STEPS_MAX = 1_000_000


class ScenarioError(ValueError):
    """A scenario that can't be planned: `field` is the path, `reason` one sentence."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Running(msgspec.Struct, frozen=True, kw_only=True):
    first_gpu: int
    gpus: int
    remaining_steps: int


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    priority: float
    duration_steps: dict[str, int] = {}
    kind: str = ""
    arrival: int = 0
    requested_gpus: int = 0
    earliest_step: int = 0
    running: Running | None = None


class RealtimeApp(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    priority: float
    demand: list[int]
    held: list[int] | None = None
    floor: int = 0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["scenario.v1"]
    horizon_steps: int
    gpus: int
    node_gpus: int = 8
    name: str = ""
    step_s: float = 3600
    nodes: list[int] | None = None
    decay_end: float = 0.5
    penalty_ratio: float = 7.0
    realtime_switch_max: int = 1 << 20
    realtime: list[RealtimeApp] = []
    batch: list[BatchJob] = []
    reference: dict[str, dict[str, float]] = {}


class PlacedJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    first_gpu: int
    gpus: int
    start_step: int


class PlacedApp(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    gpus: list[list[int]]


class WaitingJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    reason: str


class Score(msgspec.Struct, frozen=True, kw_only=True):
    utilization: float
    value: float
    unmet: int
    completed: int


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["plan.v1"] = "plan.v1"
    mode: str
    decision_us: float
    batch: list[PlacedJob]
    realtime: list[PlacedApp]
    waiting: list[WaitingJob]
    score: Score


def read_scenario(data: bytes) -> Scenario:
    """Decode and check; `ScenarioError` names the field."""
    try:
        scenario = msgspec.json.decode(data, type=Scenario)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        raise ScenarioError(path.rstrip("`") or "$", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError("$", f"not JSON: {error}") from None
    _check_pool(scenario)
    _check_realtime(scenario)
    _check_batch(scenario)
    return scenario


def _require(ok: bool, field: str, reason: str) -> None:
    if not ok:
        raise ScenarioError(field, reason)


def _check_pool(s: Scenario) -> None:
    _require(1 <= s.horizon_steps <= STEPS_MAX, "$.horizon_steps", f"must be in 1..{STEPS_MAX}, got {s.horizon_steps}")
    _require(0 <= s.gpus <= GPUS_MAX, "$.gpus", f"must be in 0..{GPUS_MAX}, got {s.gpus}")
    _require(s.node_gpus >= 1, "$.node_gpus", f"must be at least 1, got {s.node_gpus}")
    _require(0.0 <= s.decay_end <= 1.0, "$.decay_end", f"must be in 0..1, got {s.decay_end}")
    _require(0.0 <= s.penalty_ratio <= 1000.0, "$.penalty_ratio", f"must be in 0..1000, got {s.penalty_ratio}")
    _require(s.realtime_switch_max >= 0, "$.realtime_switch_max", f"must be at least 0, got {s.realtime_switch_max}")
    for index, size in enumerate(s.nodes or ()):
        _require(size >= 1, f"$.nodes[{index}]", f"must be at least 1, got {size}")
    if s.nodes is not None:
        _require(sum(s.nodes) == s.gpus, "$.nodes", f"sizes add up to {sum(s.nodes)}, but gpus is {s.gpus}")


def _check_priority(priority: float, field: str) -> None:
    _require(0.0 <= priority <= PRIORITY_MAX, field, f"must be in 0..{PRIORITY_MAX}, got {priority}")


def _check_realtime(s: Scenario) -> None:
    _require(len(s.realtime) <= APPS_MAX, "$.realtime", f"more than {APPS_MAX} applications")
    seen: set[str] = set()
    holders: set[int] = set()
    for index, app in enumerate(s.realtime):
        at = f"$.realtime[{index}]"
        _require(app.id not in seen, f"{at}.id", f"`{app.id}` is used twice")
        seen.add(app.id)
        _check_priority(app.priority, f"{at}.priority")
        _require(
            len(app.demand) == s.horizon_steps,
            f"{at}.demand",
            f"has {len(app.demand)} entries, but horizon_steps is {s.horizon_steps}",
        )
        for step, demand in enumerate(app.demand):
            _require(0 <= demand <= 10 * GPUS_MAX, f"{at}.demand[{step}]", f"must be 0..{10 * GPUS_MAX}, got {demand}")
        _require(0 <= app.floor <= 10 * GPUS_MAX, f"{at}.floor", f"must be 0..{10 * GPUS_MAX}, got {app.floor}")
        for place, gpu in enumerate(app.held or ()):
            _require(0 <= gpu < s.gpus, f"{at}.held[{place}]", f"GPU {gpu} is outside 0..{s.gpus - 1}")
            _require(gpu not in holders, f"{at}.held[{place}]", f"GPU {gpu} is held twice")
            holders.add(gpu)


def _check_batch(s: Scenario) -> None:
    _require(len(s.batch) <= JOBS_MAX, "$.batch", f"more than {JOBS_MAX} jobs")
    seen: set[str] = {app.id for app in s.realtime}
    taken: dict[int, str] = {gpu: app.id for app in s.realtime for gpu in app.held or ()}
    for index, job in enumerate(s.batch):
        at = f"$.batch[{index}]"
        _require(job.id not in seen, f"{at}.id", f"`{job.id}` is used twice")
        seen.add(job.id)
        _check_priority(job.priority, f"{at}.priority")
        _require(job.earliest_step >= 0, f"{at}.earliest_step", f"must be at least 0, got {job.earliest_step}")
        for size, steps in job.duration_steps.items():
            field = f"{at}.duration_steps.{size}"
            _require(
                size.isascii() and size.isdigit() and size_class(int(size)) >= 0, field, "size must be a power of two"
            )
            _require(1 <= steps <= DURATION_STEPS_MAX, field, f"must be in 1..{DURATION_STEPS_MAX}, got {steps}")
        if job.running is None:
            _require(bool(job.duration_steps), f"{at}.duration_steps", "offers no size")
            wanted = str(job.requested_gpus)
            known = job.requested_gpus == 0 or wanted in job.duration_steps
            _require(known, f"{at}.requested_gpus", f"size {wanted} has no entry in duration_steps")
            continue
        block = job.running
        inside = block.first_gpu >= 0 and block.gpus >= 1 and block.first_gpu + block.gpus <= s.gpus
        _require(inside, f"{at}.running", f"block {block.first_gpu}+{block.gpus} lies outside the pool")
        _require(
            block.remaining_steps >= 1,
            f"{at}.running.remaining_steps",
            f"must be at least 1, got {block.remaining_steps}",
        )
        for gpu in range(block.first_gpu, block.first_gpu + block.gpus):
            _require(gpu not in taken, f"{at}.running", f"GPU {gpu} is already held by `{taken.get(gpu)}`")
            taken[gpu] = job.id


def node_sizes(scenario: Scenario) -> tuple[int, ...]:
    """Sizes of the nodes in order; the last is smaller where node_gpus doesn't divide gpus."""
    if scenario.nodes is not None:
        return tuple(scenario.nodes)
    full, rest = divmod(scenario.gpus, scenario.node_gpus)
    return (scenario.node_gpus,) * full + ((rest,) if rest else ())


def _fixed(priority: float) -> int:
    return round(priority * PRIORITY_ONE)


def problem_of(scenario: Scenario) -> Problem:
    """The planner's arrays for a checked scenario."""
    queued = [
        QueuedJob(
            id=job.id,
            priority=_fixed(job.priority),
            options=tuple(Option(int(size), steps) for size, steps in job.duration_steps.items()),
            requested_gpus=job.requested_gpus,
            earliest_step=job.earliest_step,
            arrival=job.arrival,
        )
        for job in scenario.batch
        if job.running is None
    ]
    running = [
        RunningBlock(
            id=job.id,
            priority=_fixed(job.priority),
            first_gpu=job.running.first_gpu,
            gpus=job.running.gpus,
            remaining_steps=job.running.remaining_steps,
            arrival=job.arrival,
        )
        for job in scenario.batch
        if job.running is not None
    ]
    applications = [
        Application(
            id=app.id,
            priority=_fixed(app.priority),
            demand=tuple(app.demand),
            floor=app.floor,
            held=None if app.held is None else tuple(app.held),
            switch_max=scenario.realtime_switch_max,
        )
        for app in scenario.realtime
    ]
    try:
        return build_problem(
            steps=scenario.horizon_steps,
            node_sizes=node_sizes(scenario),
            queued=queued,
            running=running,
            applications=applications,
            penalty_ratio=scenario.penalty_ratio,
            decay_end=scenario.decay_end,
        )
    except ValueError as error:
        raise ScenarioError("$", str(error)) from None


def plan_document(problem: Problem, plan: Plan, decision_us: float) -> PlanDocument:
    """`plan.v1` of a plan. Running jobs are listed on their blocks from step 0."""
    batch = [
        PlacedJob(id=name, first_gpu=int(first), gpus=int(gpus), start_step=0)
        for name, first, gpus in zip(problem.running_ids, problem.running_first, problem.running_gpus, strict=True)
    ]
    batch += [
        PlacedJob(
            id=problem.job_ids[job],
            first_gpu=int(plan.first_gpu[job]),
            gpus=int(problem.option_gpus[plan.option[job]]),
            start_step=int(plan.start[job]),
        )
        for job in np.flatnonzero(plan.start >= 0)
    ]
    cells: list[list[list[int]]] = [[[] for _ in range(problem.steps)] for _ in range(problem.apps)]
    for app, gpu, start, end in plan.segments[np.argsort(plan.segments[:, 1], kind="stable")].tolist():
        for step in range(start, end):
            cells[app][step].append(gpu)
    waiting = [
        WaitingJob(id=problem.job_ids[job], reason=Reason(int(plan.reason[job])).public_name)
        for job in np.flatnonzero(plan.reason != Reason.NONE)
    ]
    unmet = int(unmet_gpu_steps(problem, plan.app_counts(problem)).sum())
    return PlanDocument(
        mode=plan.mode,
        decision_us=decision_us,
        batch=batch,
        realtime=[PlacedApp(id=name, gpus=cells[app]) for app, name in enumerate(problem.app_ids)],
        waiting=waiting,
        score=Score(
            utilization=round(utilization(problem, plan), 6),
            value=round(value_of(problem, plan), 6),
            unmet=unmet,
            completed=completed(problem, plan),
        ),
    )
