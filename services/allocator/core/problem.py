"""One pool's planning problem: facts in, numpy arrays out. Everything the planner may know is in here.

Steps are relative: 0 is now, `steps` the end of the window (at most 96: two words of time bits per GPU). GPUs are
numbered through the pool, neighbours share a node. The caller has already decided what isn't a matter of the grid
(quota, memory, unknown names) and hands such jobs in with a `refusal`; aging is already in the priorities.

Fixed point: priorities are thousandths (`PRIORITY_ONE` = 1.0), densities are priority × useful share in
`DENSITY_ONE` per 1.0, step weights in `Problem.weight_one` per 1.0. A value divided by `Problem.value_one` is the
mission's value. `weight_one` is the largest power of two for which no sum over this problem can leave int64.

Read `value.py` (the objective) next, then `heuristic.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.caps import Cap, cap_rows, cap_usage
from services.allocator.core.columns import AppColumn, JobColumn, OptionColumn, RunningColumn
from services.allocator.core.fixed_point import PRIORITY_ONE, running_sums, step_weights
from services.allocator.core.kernels.rows import option_rows
from services.allocator.core.reasons import Reason
from services.allocator.core.topology import Topology, size_class, topology_of

STEPS_MAX = 96  # two uint64 words less the tail that block tests shift in
DENSITY_ONE = PRIORITY_ONE * 256
WEIGHT_ONE_MAX = 1 << 24
DURATION_STEPS_MAX = 1 << 20  # longer makes no difference in any window; keeps GPU-steps inside int64
VALUE_LIMIT = 1 << 61  # every partial sum stays a factor of two below int64
PRIORITY_MAX = 1_000_000 * PRIORITY_ONE  # far above any aged priority; keeps densities inside int64

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Option:
    """One offered size. `duration_steps` (P50) is used for value and against other batch work, `hold_steps` (P90)
    against cells promised to somebody else: returns of lent GPUs and reservations."""

    gpus: int
    duration_steps: int
    hold_steps: int = 0  # 0: as the duration


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A batch-like job that has not started. `refusal` other than NONE: never planned, that is its reason."""

    id: str
    priority: int
    options: tuple[Option, ...]
    requested_gpus: int = 0  # 0: its largest size; only the baselines use it
    earliest_step: int = 0
    arrival: int = 0
    refusal: Reason = Reason.NONE
    caps: tuple[int, ...] = ()  # indices of the caps it counts against
    data: int = -1  # its row among `lacking`: what each GPU's node lacks of its data


@dataclass(frozen=True, slots=True)
class RunningBlock:
    """A batch-like job on its block since before step 0. It stays for its remaining steps."""

    id: str
    priority: int
    first_gpu: int
    gpus: int
    remaining_steps: int
    hold_steps: int = 0  # P90; 0: as remaining
    arrival: int = 0
    caps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Application:
    """A real-time application. `held` None: no state before step 0, so step 0 is free of the switch cap.

    Demand counts as at least the floor in every step; floors of all applications are served before any demand above.
    """

    id: str
    priority: int
    demand: tuple[int, ...]
    floor: int = 0
    held: tuple[int, ...] | None = None
    switch_max: int = 1 << 30
    switch_left: int = -1  # what is left of the cap for step 0; -1: all of it


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs blocked for a range of steps, for nobody in the grid."""

    id: str
    first_gpu: int
    gpus: int
    start_step: int
    end_step: int


def _columns(table: str, column: int) -> property:
    """A read-only view of one column of a table."""

    def view(problem: Problem) -> Ints:
        rows: Ints = getattr(problem, table)
        return rows[:, column]

    return property(view)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Arrays and ids of one planning problem. Build it with `build_problem`; treat it as read-only.

    Options of job j are rows option_ptr[j]..option_ptr[j+1]; `option_class` -1 marks a size this pool can't form.
    """

    steps: int
    topology: Topology
    gpu_state: Ints
    job_ids: tuple[str, ...]
    job_table: Ints  # jobs × JobColumn
    option_ptr: Ints
    option_table: Ints  # options × OptionColumn
    running_ids: tuple[str, ...]
    running_table: Ints  # running jobs × RunningColumn
    app_ids: tuple[str, ...]
    app_table: Ints  # applications × AppColumn
    app_demand: Ints  # apps × steps, never below the floor
    held_app: Ints  # per GPU: the application holding it at step -1, or -1
    reservation_ids: tuple[str, ...]
    reservations: Ints  # rows of first_gpu, gpus, start_step, end_step
    cap_ids: tuple[str, ...]
    cap_gpus: Ints
    cap_used: Ints  # caps × steps: GPUs of running jobs
    job_caps: Ints  # jobs × CAPS_PER_JOB, -1 for none
    running_caps: Ints
    domains: Ints  # per GPU, see `near.py`; empty where nothing is known
    lacking: Ints  # rows of data × GPUs, running sums
    card_state: Ints  # per GPU; empty where no card is or will be cut
    penalty_ratio: int  # thousandths
    weight_one: int
    weight: Ints
    weight_sum: Ints  # steps + 1 prefix sums

    job_priority = _columns("job_table", JobColumn.PRIORITY)
    job_earliest = _columns("job_table", JobColumn.EARLIEST)
    job_arrival = _columns("job_table", JobColumn.ARRIVAL)
    job_requested = _columns("job_table", JobColumn.REQUESTED)
    job_refusal = _columns("job_table", JobColumn.REFUSAL)
    option_gpus = _columns("option_table", OptionColumn.GPUS)
    option_class = _columns("option_table", OptionColumn.CLASS)
    option_steps = _columns("option_table", OptionColumn.STEPS)
    option_hold = _columns("option_table", OptionColumn.HOLD)
    option_density = _columns("option_table", OptionColumn.DENSITY)
    running_first = _columns("running_table", RunningColumn.FIRST)
    running_gpus = _columns("running_table", RunningColumn.GPUS)
    running_steps = _columns("running_table", RunningColumn.STEPS)
    running_hold = _columns("running_table", RunningColumn.HOLD)
    running_priority = _columns("running_table", RunningColumn.PRIORITY)
    running_arrival = _columns("running_table", RunningColumn.ARRIVAL)
    app_priority = _columns("app_table", AppColumn.PRIORITY)
    app_floor = _columns("app_table", AppColumn.FLOOR)
    app_switch_max = _columns("app_table", AppColumn.SWITCH_MAX)
    app_switch_left = _columns("app_table", AppColumn.SWITCH_LEFT)  # step 0

    @property
    def gpus(self) -> int:
        return self.topology.gpus

    @property
    def jobs(self) -> int:
        return len(self.job_ids)

    @property
    def apps(self) -> int:
        return len(self.app_ids)

    @property
    def app_penalty(self) -> Ints:
        """Fixed-point value of one unmet GPU-step per application."""
        scaled = self.app_table[:, AppColumn.PRIORITY] * (DENSITY_ONE // PRIORITY_ONE)
        return scaled * self.weight_one // 1000 * self.penalty_ratio

    @property
    def value_one(self) -> int:
        """Fixed-point value of 1.0: one GPU-step of priority 1 at weight 1."""
        return DENSITY_ONE * self.weight_one


def build_problem(
    *,
    steps: int,
    node_sizes: Sequence[int],
    queued: Sequence[QueuedJob] = (),
    running: Sequence[RunningBlock] = (),
    applications: Sequence[Application] = (),
    reservations: Sequence[Reservation] = (),
    caps: Sequence[Cap] = (),
    gpu_state: Sequence[int] | Ints | None = None,
    domains: Sequence[int] = (),
    lacking: Sequence[Sequence[int]] = (),
    card_state: Sequence[int] = (),
    penalty_ratio: float = 7.0,
    decay_end: float = 0.5,
) -> Problem:
    """Check the facts and lay them out as arrays. ValueError names what is wrong: it is the caller's mistake."""
    if not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"steps must be in 1..{STEPS_MAX}, got {steps}")
    if not 0.0 <= decay_end <= 1.0 or not 0.0 <= penalty_ratio <= 1000.0:
        raise ValueError("decay_end must be in 0..1 and penalty_ratio in 0..1000")
    topology = topology_of(tuple(int(size) for size in node_sizes))
    gpus = topology.gpus
    state = np.zeros(gpus, np.int64) if gpu_state is None else np.asarray(gpu_state, dtype=np.int64)
    if len(state) != gpus:
        raise ValueError(f"gpu_state has {len(state)} entries for {gpus} GPUs")
    if domains and len(domains) != gpus:
        raise ValueError(f"domains has {len(domains)} entries for {gpus} GPUs")
    if card_state and len(card_state) != gpus:
        raise ValueError(f"card_state has {len(card_state)} entries for {gpus} GPUs")
    option_ptr, option_table = _option_rows(queued, topology, steps)
    app_table, app_demand, held_app = _application_rows(applications, gpus, steps)
    blocked = _reservation_rows(reservations, gpus, steps)
    job_caps = cap_rows([job.caps for job in queued], len(caps))
    running_rows, running_caps = _running_rows(running, gpus), cap_rows([block.caps for block in running], len(caps))
    ratio = round(penalty_ratio * 1000)
    priorities = [job.priority for job in queued] + [block.priority for block in running]
    priorities += [app.priority for app in applications]
    if priorities and not 0 <= min(priorities) <= max(priorities) <= PRIORITY_MAX:
        raise ValueError(f"priorities must be in 0..{PRIORITY_MAX} thousandths")
    weight_one = _weight_one(gpus, steps, queued, running, applications, app_demand, ratio)
    weight, weight_sum = step_weights(steps, decay_end, weight_one)
    return Problem(
        steps=steps,
        topology=topology,
        gpu_state=state,
        job_ids=tuple(job.id for job in queued),
        job_table=_job_rows(queued),
        option_ptr=option_ptr,
        option_table=option_table,
        running_ids=tuple(block.id for block in running),
        running_table=running_rows,
        app_ids=tuple(app.id for app in applications),
        app_table=app_table,
        app_demand=app_demand,
        held_app=held_app,
        reservation_ids=tuple(row.id for row in reservations),
        reservations=blocked,
        cap_ids=tuple(cap.id for cap in caps),
        cap_gpus=_column([cap.gpus for cap in caps]),
        cap_used=cap_usage(running_rows, running_caps, len(caps), steps),
        job_caps=job_caps,
        running_caps=running_caps,
        domains=_column(domains),
        lacking=running_sums(lacking, gpus),
        card_state=_column(card_state),
        penalty_ratio=ratio,
        weight_one=weight_one,
        weight=weight,
        weight_sum=weight_sum,
    )


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _job_rows(queued: Sequence[QueuedJob]) -> Ints:
    """Job rows in `JobColumn` order."""
    rows = [(max(0, job.earliest_step), int(job.refusal), job.arrival, job.priority, _requested(job)) for job in queued]
    return np.array(rows, dtype=np.int64).reshape(-1, len(JobColumn))


def _requested(job: QueuedJob) -> int:
    return job.requested_gpus or max((option.gpus for option in job.options), default=0)


def _option_rows(queued: Sequence[QueuedJob], topology: Topology, steps: int) -> tuple[Ints, Ints]:
    """Option rows in `OptionColumn` order. Durations of 0 count as one step.

    The stored duration is capped just above the window: longer makes no difference inside it, and shifts stay small.
    """
    if not queued:
        return np.zeros(1, np.int64), np.empty((0, len(OptionColumn)), np.int64)
    flat = [value for job in queued for o in job.options for value in (o.gpus, o.duration_steps, o.hold_steps)]
    offered = np.array(flat, dtype=np.int64).reshape(-1, 3)
    jobs = np.array([(job.priority, job.data, job.earliest_step) for job in queued], dtype=np.int64)
    pointers = _column([0, *accumulate(len(job.options) for job in queued)])
    table: Ints = option_rows(
        pointers, offered, jobs, topology.class_of_bits, steps, DURATION_STEPS_MAX, DENSITY_ONE // PRIORITY_ONE
    )
    if not table[:, OptionColumn.GPUS].all():
        _refuse_size(queued)
    return pointers, table


def _refuse_size(queued: Sequence[QueuedJob]) -> None:
    job, size = next((j, o.gpus) for j in queued for o in j.options if size_class(o.gpus) < 0)
    raise ValueError(f"job {job.id}: size {size} is not a power of two")


def _running_rows(running: Sequence[RunningBlock], gpus: int) -> Ints:
    rows = []
    for block in running:
        if block.first_gpu < 0 or block.gpus < 1 or block.first_gpu + block.gpus > gpus:
            raise ValueError(f"running job {block.id}: block {block.first_gpu}+{block.gpus} lies outside the pool")
        remaining = max(1, block.remaining_steps)
        hold = max(remaining, block.hold_steps)
        rows.append((block.first_gpu, block.gpus, remaining, hold, block.priority, block.arrival))
    used = sorted(gpu for row in rows for gpu in range(row[0], row[0] + row[1]))
    for gpu, other in pairwise(used):
        if gpu == other:
            raise ValueError(f"two running jobs share GPU {gpu}")
    return np.array(rows, dtype=np.int64).reshape(-1, len(RunningColumn))


def _application_rows(applications: Sequence[Application], gpus: int, steps: int) -> tuple[Ints, Ints, Ints]:
    demand = np.zeros((len(applications), steps), np.int64)
    held_app = np.full(gpus, -1, np.int64)
    rows = []
    for index, app in enumerate(applications):
        if len(app.demand) != steps:
            raise ValueError(f"application {app.id}: demand has {len(app.demand)} steps, the window {steps}")
        demand[index] = np.maximum(max(0, app.floor), np.array(app.demand, np.int64))
        cap = min(max(0, app.switch_max), 2 * gpus + 2)
        left = cap if app.switch_left < 0 else min(cap, app.switch_left)
        rows.append((app.priority, max(0, app.floor), cap, 2 * gpus + 2 if app.held is None else left))
        for gpu in app.held or ():
            if not 0 <= gpu < gpus or held_app[gpu] >= 0:
                raise ValueError(f"application {app.id}: GPU {gpu} is outside the pool or held twice")
            held_app[gpu] = index
    return np.array(rows, dtype=np.int64).reshape(-1, len(AppColumn)), demand, held_app


def _reservation_rows(reservations: Sequence[Reservation], gpus: int, steps: int) -> Ints:
    rows = []
    for row in reservations:
        if row.first_gpu < 0 or row.gpus < 1 or row.first_gpu + row.gpus > gpus:
            raise ValueError(f"reservation {row.id}: GPUs {row.first_gpu}+{row.gpus} lie outside the pool")
        start, end = min(max(0, row.start_step), steps), min(max(0, row.end_step), steps)
        rows.append((row.first_gpu, row.gpus, start, max(start, end)))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _weight_one(
    gpus: int,
    steps: int,
    queued: Sequence[QueuedJob],
    running: Sequence[RunningBlock],
    applications: Sequence[Application],
    demand: Ints,
    ratio: int,
) -> int:
    """The largest power of two at which neither the best nor the worst plan of this problem leaves int64."""
    top = max([job.priority for job in queued] + [block.priority for block in running] + [0])
    gain_max = gpus * steps * top * (DENSITY_ONE // PRIORITY_ONE)
    unit = DENSITY_ONE // PRIORITY_ONE
    loss_max = sum(
        max(1000, ratio) * app.priority * unit * max(1, int(row.sum())) // 1000
        for app, row in zip(applications, demand, strict=True)
    )
    weight_one = WEIGHT_ONE_MAX
    while weight_one > 1 and weight_one * max(gain_max, loss_max) >= VALUE_LIMIT:
        weight_one //= 2
    if weight_one * max(gain_max, loss_max) >= VALUE_LIMIT:
        raise ValueError("priorities and demand are too large for 64-bit value arithmetic")
    return weight_one
