"""A machine that was restarted took its processes with it: they were interrupted, they did not fail."""

from __future__ import annotations

import pytest

from schemas.executions import FailureCause, JobCompleted, JobStopped, NodeReported, StopCause
from services.executor.core.reports import Exit
from services.executor.shell.drivers.simulated import SimulatedDriver, SimulatedRun
from tests.unit.executor.executor_rig import Rig, assignment, placed, virtually


class Restarted(SimulatedDriver):
    """After `boots` rises, runs of before are gone; `noted`: they had ended, and left their end behind."""

    def __init__(self, clock, *, noted: bool) -> None:
        super().__init__(clock)
        self.boots = 1
        self._noted = noted

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    async def adopt(self, order, facts):
        run = await super().adopt(order, facts)
        if self.boots > 1 and isinstance(run, SimulatedRun):
            now_ms = self._clock.now_ms()
            cause = None if self._noted else FailureCause.UNKNOWN
            run._stopped.set_result(Exit(now_ms - 1000 if self._noted else now_ms, cause))
        return run


@pytest.mark.parametrize("noted", [False, True])
def test_a_run_that_vanished_with_its_machine_was_stopped_by_its_loss(noted: bool):
    async def scenario(rig: Rig):
        rig.driver = driver = Restarted(rig.clock, noted=noted)
        await rig.start()
        await rig.place(placed(1, assignment("a", 0, run_s=1000.0)))
        await rig.wait_s(50)
        await rig.crash()
        driver.boots += 1
        await rig.start()
        await rig.wait_s(10)

    rig = virtually(scenario)
    assert rig.said() == ["started", "completed" if noted else "stopped"]
    if noted:
        assert len(rig.events(JobCompleted)) == 1
    else:
        (stopped,) = rig.events(JobStopped)
        assert stopped.cause is StopCause.NODE_LOST
    boots = [report.boot_id for report in rig.events(NodeReported)]
    assert len(set(boots)) == 2
