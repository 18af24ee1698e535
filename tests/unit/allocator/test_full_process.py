"""The solver's own process: answers, survives its own errors and being killed, and ends with its owner."""

from __future__ import annotations

import asyncio
import io
import pickle
import struct

import numpy as np
import pytest

from services.allocator.core.heuristic import kept_rows
from services.allocator.core.problem import Option, QueuedJob, build_problem
from services.allocator.core.verify import verify_plan
from services.allocator.shell.full_mode import Answer, SolverError, Task
from services.allocator.shell.full_process import ProcessSolver, serve


def task(seconds: float, iterations: int = 0) -> Task:
    jobs = [QueuedJob(f"j{i}", 1000 + 500 * i, (Option(1, 4 + i), Option(2, 2 + i // 2)), arrival=i) for i in range(9)]
    problem = build_problem(steps=12, node_sizes=(4,), queued=jobs)
    unknown = np.full(problem.jobs, -1, np.int64)
    rows = kept_rows(unknown, unknown, unknown)
    return Task(problem, rows, np.zeros((0, 4), np.int64), iterations, 0, seconds, deterministic=True)


def test_it_answers_and_a_killed_process_is_replaced() -> None:
    async def main() -> None:
        solver = ProcessSolver()
        answer = await solver.solve(task(0.05))
        assert verify_plan(task(0.05).problem, answer.plan) == []
        assert answer.gain >= 0.0
        open_question = asyncio.ensure_future(solver.solve(task(60.0)))
        await asyncio.sleep(0)
        assert solver.process is not None
        solver.process.kill()
        with pytest.raises(SolverError):
            await open_question
        again = await solver.solve(task(0.05))
        assert again.plan.start.tobytes() == answer.plan.start.tobytes()
        process = solver.process
        assert process is not None
        cancelled = asyncio.ensure_future(solver.solve(task(60.0)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await solver.stop()
        assert process.returncode is not None

    asyncio.run(main())


def test_an_error_is_an_answer_and_the_end_of_input_ends_it() -> None:
    def frame(content: object) -> bytes:
        packed = pickle.dumps(content)
        return struct.pack("!Q", len(packed)) + packed

    source, sink = io.BytesIO(frame("not a task") + frame(task(0.05))), io.BytesIO()
    serve(source, sink)
    sink.seek(0)
    answers = []
    while head := sink.read(8):
        answers.append(pickle.loads(sink.read(struct.unpack("!Q", head)[0])))
    assert isinstance(answers[0], str)
    assert isinstance(answers[1], Answer)
