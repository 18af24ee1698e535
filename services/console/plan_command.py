"""`gpugrid plan FILE`: one planning problem from a file, planned, drawn, measured. Needs no stack.

Reads `scenario.v1`, writes `plan.v1`. Signatures and help here; planning is the allocator's core, drawing `plan_picture`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson
from services.console.session import Session

if TYPE_CHECKING:
    from services.allocator.core.plan import Plan
    from services.allocator.core.problem import Problem

FILE_BYTES_MAX = 256 * 1024 * 1024  # a scenario of 65,536 GPUs and 200,000 jobs stays below
REPEAT_MAX = 10_000
FULL_S_DEFAULT = 10.0  # beyond, most problems gain next to nothing
SEARCH_S_PER_ROUND_MIN = 0.05  # a timed search checks the clock at most this often


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What full mode proves: no legal plan's value exceeds `bound`; `gap` is the plan's relative distance to it."""

    bound: float | None
    gap: float | None
    optimal: bool


class Mode(StrEnum):
    """Who plans."""

    FAST = "fast"
    FULL = "full"
    FIFO = "fifo"
    BACKFILL = "backfill"


def plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A scenario.v1 file.", metavar="FILE")],
    mode: Annotated[
        Mode,
        typer.Option(
            help="fast: the allocator's heuristic; full: a solver improves it and proves a bound; fifo, backfill: baselines."
        ),
    ] = Mode.FAST,
    iterations: Annotated[
        int | None,
        typer.Option(min=0, max=10_000_000, help="Candidate grids to try; default by size.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=3600.0,
            help="fast: search this long and keep the best; full: its limit (10).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same file, budget and seed: same plan.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, max=REPEAT_MAX, help="Measure the decision this many times.")] = 20,
    svg: Annotated[
        Path | None, typer.Option(help="Write a picture: FIFO above, this plan below.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan one problem from a file: grid, value, utilization, who waits and why.

    \b
    gpugrid plan tests/data/scenarios/training_heavy.json
    gpugrid plan day.json --mode fifo --json
    gpugrid plan day.json --mode full --seconds 10
    gpugrid plan day.json --seconds 5 --svg day.svg
    """
    from services.allocator.shell.warmup import use_kernel_cache

    use_kernel_cache()
    from services.allocator.core.baselines import plan_fifo
    from services.allocator.core.scenario import ScenarioError, plan_document, problem_of, read_scenario

    session: Session = ctx.obj
    try:
        problem = problem_of(read_scenario(_read(file)))
    except ScenarioError as error:
        raise UsageError(f"{file}: {error}") from None
    proof: Proof | None = None
    if mode is Mode.FULL:
        planned, decision_us, proof = _proven(problem, FULL_S_DEFAULT if seconds is None else seconds)
    elif seconds is not None and mode is Mode.FAST:
        planned, decision_us = _search(problem, seconds, seed)
    else:
        planned, decision_us = _measured(problem, mode, iterations, seed, repeat)
    if svg is not None:
        from services.console.plan_picture import svg as picture

        _write(svg, picture(problem, [("FIFO", plan_fifo(problem)), (mode.value, planned)]))
    document = plan_document(problem, planned, round(decision_us, 1))
    if as_json:
        session.json(msgspec.to_builtins(document) | (msgspec.to_builtins(proof) if proof else {}))
    else:
        _show(session, problem, planned, document, proof)


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{file} is larger than {FILE_BYTES_MAX // 2**20} MiB; no scenario needs that.")
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"Can't read {file}: {error.strerror}.") from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConsoleError(f"Can't write {file}: {error.strerror}.") from None


def _measured(problem: Problem, mode: Mode, iterations: int | None, seed: int, repeat: int) -> tuple[Plan, float]:
    """The plan and the median wall time of one warm decision: arrays in memory → finished grid."""
    from services.allocator.core import baselines, heuristic

    decide: Callable[[], Any]
    if mode is Mode.FAST:
        budget = heuristic.default_iterations(problem) if iterations is None else iterations
        facts = heuristic.facts_of(problem)
        planned = heuristic.plan_fast(problem, budget, seed)
        decide = lambda: heuristic.solve(facts, budget, seed, heuristic.FINISH_SHARE)  # noqa: E731
    else:
        baseline = baselines.plan_fifo if mode is Mode.FIFO else baselines.plan_backfill
        planned = baseline(problem)
        decide = lambda: baseline(problem)  # noqa: E731
    return planned, median(_timed_us(decide) for _ in range(repeat))


def _timed_us(decide: Callable[[], Any]) -> float:
    begin = time.perf_counter_ns()
    decide()
    return (time.perf_counter_ns() - begin) / 1000


def _search(problem: Problem, seconds: float, seed: int) -> tuple[Plan, float]:
    """Search from one seed after the other with growing budgets until the time is over; the best plan wins."""
    from services.allocator.core import heuristic

    begin = time.perf_counter()
    budget = max(1, heuristic.default_iterations(problem))
    best = heuristic.plan_fast(problem, budget, seed)
    spent = time.perf_counter() - begin
    while (left := seconds - (time.perf_counter() - begin)) > 0:
        if spent < max(SEARCH_S_PER_ROUND_MIN, seconds / 8):
            budget *= 2
        if spent > left:
            budget = max(1, int(budget * left / spent))
        seed += 1
        round_begin = time.perf_counter()
        candidate = heuristic.plan_fast(problem, budget, seed)
        spent = max(1e-6, time.perf_counter() - round_begin)
        if candidate.value > best.value:
            best = candidate
    return best, (time.perf_counter() - begin) * 1e6


def _proven(problem: Problem, seconds: float) -> tuple[Plan, float, Proof]:
    """Full mode's plan, the microseconds it took, and what is proven about it."""
    from services.allocator.shell.cp_sat import Limit
    from services.allocator.shell.solver import plan_full

    begin = time.perf_counter()
    full = plan_full(problem, Limit(seconds))
    took_us = (time.perf_counter() - begin) * 1e6
    bound = None if full.bound is None else round(full.bound / problem.value_one, 6)
    gap = full.gap(problem)
    return full.plan, took_us, Proof(bound=bound, gap=None if gap is None else round(gap, 9), optimal=full.optimal)


def _proof_words(proof: Proof) -> str:
    if proof.optimal:
        return "proven best: no legal plan is worth more"
    if proof.bound is None or proof.gap is None:
        return "no bound was proven in this time"
    return f"no legal plan is worth more than {proof.bound:.2f} (gap {proof.gap:.3%})"


def _show(session: Session, problem: Problem, planned: Plan, document: Any, proof: Proof | None) -> None:
    """Grid, legend, numbers, and a line per waiting job."""
    from services.allocator.core.reasons import Reason
    from services.allocator.core.waiting import blockers_of
    from services.console.plan_picture import draw, legend
    from services.console.tables import plain_table

    session.print(draw(problem, planned), end="")
    session.print(legend(problem, planned))
    score = document.score
    session.print(
        f"\n{document.mode}: value {score.value:.2f}, {score.utilization:.1%} of GPU-steps in use, "
        f"{score.completed} of {problem.jobs + len(problem.running_ids)} jobs completed, "
        f"{score.unmet} unmet real-time GPU-steps, decided in {document.decision_us:.0f} µs"
    )
    if proof is not None:
        session.print(_proof_words(proof))
    waiting = [job for job in range(problem.jobs) if planned.reason[job] != Reason.NONE]
    if not waiting:
        return
    table = plain_table("JOB", "PLANNED START", "WAITS BECAUSE", "HELD BY")
    for job in waiting[:40]:
        start = int(planned.start[job])
        holders = ", ".join(blocker.id for blocker in blockers_of(problem, planned, job, limit=4))
        words = planned.reason_of(job).public_name
        table.add_row(problem.job_ids[job], f"step {start}" if start >= 0 else "–", words, holders)
    session.print(table)
    if len(waiting) > 40:
        session.print(f"… and {len(waiting) - 40} more (--json has all)")
