"""Big jobs keep their planned start: once published it only moves earlier, unless a stated cause moves it. Pure.

A plan that moves a promised job later is made again with all promised blocks closed to everybody else. A promise is given up only
where its block is no longer there for it, where keeping it would leave an application short, or a job of higher priority later.
Whoever is *big*, and how many at once: `Rules.planned_starts`. Without that rule nothing here changes a plan.

Read next: `promises.py` (books and causes), `commit.py` (who calls).
"""

from __future__ import annotations

from dataclasses import replace as replaced

import numpy as np
from msgspec.structs import replace

from schemas.decisions import Promised
from schemas.records import Now
from schemas.status import NodeGpus
from services.allocator.core.claims import claims_first
from services.allocator.core.config import Policy
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.pins import Pin, cap_used, outlasting, with_held, with_pins
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.problem import Problem
from services.allocator.core.promises import Cause
from services.allocator.core.reasons import Reason
from services.allocator.core.state import Promise, State
from services.allocator.core.value import unmet_gpu_steps, unmet_penalty
from services.allocator.core.verify import verify_plan

ROUNDS_MAX = 3
"""Plans made again per decision. What then still stands is kept, unless applications lack GPUs for it."""
Why = tuple[Cause, list[str]]


def keep_promises(
    state: State, posed: Posed, plan: Plan, budget: int, policy: Policy, now: Now
) -> tuple[Plan, list[Promised]]:
    """`plan`, or one that keeps what was promised in this pool; and what to promise, or to take back, with it."""
    rule = state.rules.planned_starts
    if not rule.nodes_min:
        return plan, []
    standing = {
        job_id: promise
        for job_id, promise in state.promises.items()
        if promise.pool == posed.pool and promise.start_ms is not None
    }
    pins, gone = _pins(state, posed, standing, policy, now)
    whys: dict[str, Why] = dict(gone)
    if not all(_is_kept(posed.problem, plan, pin) for pin in pins):
        plan = _replanned(posed, plan, pins, budget, policy, whys)
    found = [_said(posed, plan, pin, standing[pin.job_id], whys, policy, now) for pin in pins]
    found += [
        Promised(job_id=job_id, pool=posed.pool, cause=cause.value, by=by) for job_id, (cause, by) in gone.items()
    ]
    new = _new(state, posed, plan, set(standing), rule.jobs_max - len(pins), policy, now)
    return plan, [effect for effect in found if effect is not None] + new


def agreed(state: State, said: list[Promised]) -> list[Promised]:
    """One word per job where several pools spoke: the earliest start. It is later than before only if no pool keeps it."""
    of_job: dict[str, list[Promised]] = {}
    for effect in said:
        of_job.setdefault(effect.job_id, []).append(effect)
    kept = []
    for job_id, effects in of_job.items():
        known = state.promises.get(job_id)
        before_ms = known.start_ms if known is not None else None
        best = min(effects, key=lambda effect: effect.start_ms if effect.start_ms is not None else 1 << 62)
        if known is None or before_ms is None:
            kept.append(best)
            continue
        earlier = best.start_ms is not None and best.start_ms <= before_ms
        spoken = [effect for effect in effects if effect.pool == known.pool]
        if earlier:
            if best.pool == known.pool or best.start_ms != before_ms:
                kept.append(best)
        elif spoken:
            kept.append(replace(best, cause=spoken[0].cause, by=spoken[0].by))
    return kept


def _pins(
    state: State, posed: Posed, standing: dict[str, Promise], policy: Policy, now: Now
) -> tuple[list[Pin], dict[str, Why]]:
    """Promised jobs with the latest step they may start at on their promised block, and the whole steps before their moment, after which
    it is closed to others; and those that aren't planned at all any more."""
    rows = {job.job_id: row for row, job in enumerate(posed.queued)}
    pins: list[Pin] = []
    gone: dict[str, Why] = {}
    for job_id, promise in standing.items():
        row = rows.get(job_id)
        if row is None:
            gone[job_id] = (Cause.HIGHER_PRIORITY, [])  # or it starts in another pool: then nobody asks
            continue
        refusal = int(posed.problem.job_refusal[row])
        if refusal == Reason.TAKES_A_PLACE:
            continue  # running jobs leave a block for it: it starts there
        if refusal != Reason.NONE or not _is_big(posed, row, state.rules.planned_starts.nodes_min):
            changed = refusal != Reason.NONE or promise.rules != state.rules.version
            gone[job_id] = (Cause.RULES if changed else Cause.NODE_WITHDRAWN, [])
            continue
        first, option = _block(posed, row, promise.placed)
        left_ms = max(0, (promise.start_ms or 0) - now.domain_ms)
        pins.append(Pin(job_id, row, option, first, -(-left_ms // policy.step_ms), left_ms // policy.step_ms))
    return sorted(pins, key=lambda pin: (pin.step, pin.row)), gone


def _is_big(posed: Posed, row: int, nodes_min: int) -> bool:
    largest = max(posed.problem.topology.node_sizes, default=1)
    return min(posed.queued[row].spec.sizes) >= max(2, nodes_min * largest)


def _block(posed: Posed, row: int, placed: list[NodeGpus]) -> tuple[int, int]:
    """(first GPU, option row) of a block by names; -1 for what is no more."""
    if any(part.node not in posed.layout.first for part in placed):
        return -1, -1
    numbers = [number for part in placed for number in posed.layout.numbers(part.node, part.gpus)]
    problem = posed.problem
    for option in range(int(problem.option_ptr[row]), int(problem.option_ptr[row + 1])):
        level = int(problem.option_class[option])
        if level >= 0 and int(problem.option_gpus[option]) == len(numbers):
            blocks = problem.topology.blocks(level)
            row_of_block = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            return (numbers[0], option) if row_of_block and numbers[0] in blocks else (-1, option)
    return -1, -1


def _replanned(posed: Posed, free: Plan, pins: list[Pin], budget: int, policy: Policy, whys: dict[str, Why]) -> Plan:
    """A plan that keeps every promise it can; fills in why the others can't be kept. `free`: the plan that knows of no promise."""
    problem, lost = posed.problem, set[str]()
    for _ in range(ROUNDS_MAX):
        held = _held(posed, free, [pin for pin in pins if pin.job_id not in lost], whys)
        lost |= whys.keys()
        if not held:
            return free
        rest = with_pins(problem, held)
        pinned = claims_first(posed, rest, plan_fast(rest, budget, policy.seed), budget, policy)
        plan = with_held(problem, pinned, held)
        yielding = _yielding(posed, free, plan, held)
        if not yielding:
            return plan
        whys.update(yielding)
        lost |= yielding.keys()
        best = plan if all(cause is Cause.HIGHER_PRIORITY for cause, _ in yielding.values()) else None
    if best is not None:
        for job_id in yielding:
            del whys[job_id]  # nobody has looked for anything better: they keep it
        return best
    for pin in pins:
        if not 0 <= free.start[pin.row] <= pin.step:
            whys.setdefault(pin.job_id, (Cause.APPLICATIONS, list(problem.app_ids)))
    return free


def _held(posed: Posed, free: Plan, pins: list[Pin], whys: dict[str, Why]) -> list[Pin]:
    """Where each promised job is held: where the free plan has it if that keeps the promise, else on its promised block.

    Those whose block can't be had go into `whys`.
    """
    problem = posed.problem
    at = {pin.job_id: _in(problem, free, pin) for pin in pins if 0 <= free.start[pin.row] <= pin.step}
    old = [pin for pin in pins if pin.job_id not in at]
    while True:
        clash = [
            pin for pin in pins if pin.job_id in at and any(_meet(problem, at[pin.job_id], other) for other in old)
        ]
        if not clash:
            break
        old += clash
        for pin in clash:
            del at[pin.job_id]
    held: list[Pin] = list(at.values())
    for pin in sorted(old, key=lambda pin: (pin.step, pin.row)):
        why = _obstacle(posed, pin, held)
        if why is None:
            held.append(_after_applications(problem, free, pin))
        else:
            whys[pin.job_id] = why
    return held


def _is_kept(problem: Problem, plan: Plan, pin: Pin) -> bool:
    """Whether the plan has the job in time, and nobody starts now who may still be there at its moment."""
    start = int(plan.start[pin.row])
    return start == 0 or (0 < start <= pin.step and not outlasting(problem, plan, _in(problem, plan, pin)))


def _in(problem: Problem, plan: Plan, pin: Pin) -> Pin:
    """The job where the plan has it."""
    row, start = pin.row, int(plan.start[pin.row])
    found = Pin(pin.job_id, row, int(plan.option[row]), int(plan.first_gpu[row]), start, min(start, pin.closed))
    return _after_applications(problem, plan, found)


def _after_applications(problem: Problem, plan: Plan, pin: Pin) -> Pin:
    """Applications may hold its block until its step: they leave at a step, and not later."""
    rows, last = plan.segments, pin.first + int(problem.option_gpus[pin.option])
    inside = (rows[:, 1] >= pin.first) & (rows[:, 1] < last) & (rows[:, 2] < pin.step)
    until = min(pin.step, int(rows[inside, 3].max(initial=0)))
    return replaced(pin, closed=max(pin.closed, until))


def _meet(problem: Problem, one: Pin, other: Pin) -> bool:
    """Whether two places have a cell in common."""
    if one.first < 0 or other.first < 0:
        return False
    sizes = problem.option_gpus[one.option], problem.option_gpus[other.option]
    steps = problem.option_steps[one.option], problem.option_steps[other.option]
    return bool(
        one.first < other.first + sizes[1]
        and other.first < one.first + sizes[0]
        and one.step < other.step + steps[1]
        and other.step < one.step + steps[0]
    )


def _obstacle(posed: Posed, pin: Pin, held: list[Pin]) -> Why | None:
    """Why the promised block can't be had at its step; None: it can."""
    problem = posed.problem
    if pin.first < 0 or pin.option < 0:
        return Cause.NODE_WITHDRAWN, []
    size, steps = int(problem.option_gpus[pin.option]), int(problem.option_steps[pin.option])
    block = slice(pin.first, pin.first + size)
    closed = np.flatnonzero(problem.gpu_state[block] != GpuState.USABLE) + pin.first
    if len(closed):
        return Cause.NODE_WITHDRAWN, [part.node for part in posed.layout.local(closed.tolist())]
    hold = int(problem.option_hold[pin.option])
    reserved = [
        problem.reservation_ids[row]
        for row, (first, gpus, start, end) in enumerate(problem.reservations.tolist())
        if first < pin.first + size and pin.first < first + gpus and start < pin.step + hold and pin.step < end
    ]
    if reserved:
        return Cause.RESERVED, list(dict.fromkeys(reserved))
    on_it = (problem.running_first < pin.first + size) & (problem.running_first + problem.running_gpus > pin.first)
    late = np.flatnonzero(on_it & (problem.running_steps > pin.step))
    if len(late):
        return Cause.OVERRUN, [problem.running_ids[row] for row in late.tolist()]
    earlier = [other.job_id for other in held if _meet(problem, pin, other)]
    if earlier:
        return Cause.OVERRUN, earlier
    used = cap_used(problem, held)
    for cap in problem.job_caps[pin.row].tolist():
        if cap >= 0 and (used[cap, pin.step : pin.step + steps] + size > problem.cap_gpus[cap]).any():
            return Cause.RULES, []
    return None


def _yielding(posed: Posed, free: Plan, plan: Plan, held: list[Pin]) -> dict[str, Why]:
    """Which held jobs have to give way, and why: an application is short of GPUs, or a job of higher priority later, than in the
    free plan that has it on their cells."""
    problem = posed.problem
    short = unmet_penalty(problem, unmet_gpu_steps(problem, plan.app_counts(problem)))
    had = unmet_penalty(problem, unmet_gpu_steps(problem, free.app_counts(problem)))
    found: dict[str, Why] = {}
    moved = [pin for pin in held if not _is_kept(problem, free, pin)]
    if short > had or verify_plan(problem, plan):
        for pin in moved:
            apps = _apps_on(problem, free, pin)
            if apps:
                found[pin.job_id] = (Cause.APPLICATIONS, apps)
        return found or {pin.job_id: (Cause.APPLICATIONS, list(problem.app_ids)) for pin in held}
    for pin in moved:
        others = [row for row in _jobs_on(problem, free, pin) if not 0 <= plan.start[row] <= free.start[row]]
        above = [row for row in others if _rank(posed, row) > _rank(posed, pin.row)]
        if above:
            found[pin.job_id] = (Cause.HIGHER_PRIORITY, [problem.job_ids[row] for row in above])
    return found


def _rank(posed: Posed, row: int) -> tuple[int, int]:
    """What may move a promise: being overdue or inside a guarantee, then the declared priority. Waiting and shares change by themselves;
    they order jobs, and break no promise."""
    claims, job = posed.claims, posed.queued[row]
    return 2 * (job.job_id in claims.overdue) + (job.job_id in claims.inside), job.spec.priority


def _apps_on(problem: Problem, plan: Plan, pin: Pin) -> list[str]:
    """Applications that hold GPUs of the block now, or in the plan while the job would."""
    last, end = pin.first + int(problem.option_gpus[pin.option]), pin.step + int(problem.option_hold[pin.option])
    rows = plan.segments
    inside = (rows[:, 1] >= pin.first) & (rows[:, 1] < last) & (rows[:, 2] < end) & (rows[:, 3] > pin.step)
    apps = {int(app) for app in rows[inside, 0]} | {int(app) for app in problem.held_app[pin.first : last] if app >= 0}
    return [problem.app_ids[app] for app in sorted(apps)]


def _jobs_on(problem: Problem, plan: Plan, pin: Pin) -> list[int]:
    """Rows of other queued jobs that have cells of the block in the plan while the job would."""
    found = []
    for row in np.flatnonzero(plan.start >= 0).tolist():
        start = int(plan.start[row])
        place = Pin("", row, int(plan.option[row]), int(plan.first_gpu[row]), start, start)
        if row != pin.row and _meet(problem, pin, place):
            found.append(row)
    return found


def _said(
    posed: Posed, plan: Plan, pin: Pin, promise: Promise, whys: dict[str, Why], policy: Policy, now: Now
) -> Promised | None:
    """What changes about a promise by the plan; None: nothing, or the job starts."""
    start, before_ms = int(plan.start[pin.row]), promise.start_ms or 0
    if start == 0:
        return None
    if 0 < start <= pin.step:
        start_ms, placed = min(before_ms, now.domain_ms + start * policy.step_ms), _place(posed, plan, pin.row)
        if (start_ms, placed) == (before_ms, promise.placed):
            return None
        return Promised(job_id=pin.job_id, pool=posed.pool, start_ms=start_ms, placed=placed)
    cause, by = whys.get(pin.job_id, (Cause.UNEXPLAINED, []))
    if start < 0:
        return Promised(job_id=pin.job_id, pool=posed.pool, cause=cause.value, by=by)
    return Promised(
        job_id=pin.job_id,
        pool=posed.pool,
        start_ms=now.domain_ms + start * policy.step_ms,
        placed=_place(posed, plan, pin.row),
        cause=cause.value,
        by=by,
    )


def _new(
    state: State, posed: Posed, plan: Plan, standing: set[str], room: int, policy: Policy, now: Now
) -> list[Promised]:
    """Big jobs with a planned start and no promise yet in this pool, the best first."""
    rows = [
        row
        for row in np.flatnonzero(plan.start > 0).tolist()
        if posed.queued[row].job_id not in standing and _is_big(posed, row, state.rules.planned_starts.nodes_min)
    ]
    rows.sort(key=lambda row: (-int(posed.problem.job_priority[row]), posed.queued[row].arrival))
    return [
        Promised(
            job_id=posed.queued[row].job_id,
            pool=posed.pool,
            start_ms=now.domain_ms + int(plan.start[row]) * policy.step_ms,
            placed=_place(posed, plan, row),
        )
        for row in rows[: max(0, room)]
    ]


def _place(posed: Posed, plan: Plan, row: int) -> list[NodeGpus]:
    first, size = int(plan.first_gpu[row]), int(posed.problem.option_gpus[plan.option[row]])
    return posed.layout.local(list(range(first, first + size)))
