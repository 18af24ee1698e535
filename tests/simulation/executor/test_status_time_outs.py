"""Time-outs in a row are not a failure, however many: what runs goes on, everything is said in the end, and patience starts anew."""

from __future__ import annotations

import pytest

from services.runtime.bus.faults import Unknown
from tests.unit.executor.executor_rig import Rig, assignment, placed, virtually


@pytest.mark.parametrize("how", list(Unknown))
def test_twenty_five_time_outs_fail_no_job_and_the_next_report_is_sent_at_once(how: Unknown):
    async def scenario(rig: Rig):
        await rig.start()
        await rig.wait_s(1)
        for _ in range(25):
            rig.bus.fail_next_send("executions", how)
        await rig.place(placed(1, assignment("a", 0, run_s=10.0)))
        await rig.wait_s(120)
        said = list(dict.fromkeys(envelope.id for envelope in rig.envelopes()))
        rig.bus.fail_next_send("executions", Unknown.BEFORE_STORING)
        await rig.place(placed(2, assignment("b", 0, run_s=100.0)))
        await rig.wait_s(0.5)
        return said, rig.said("b")

    said, soon = virtually(scenario)
    assert said[-2:] == ["a/1/n00/started", "a/1/n00/completed"]
    assert soon == ["started"], "after an answer the first pause is short again"
