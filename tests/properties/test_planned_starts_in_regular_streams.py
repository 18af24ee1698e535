"""A big job keeps its planned start where small ones come and go in equal distances: nobody starts on its block who may still be there.

By steps of the grid alone each may end a little after the promised moment, and so may the next, and none of them would overrun anything.
"""

from __future__ import annotations

import pytest

from schemas.commands import ChangeRules
from schemas.decisions import Promised
from schemas.rules import PlannedStarts, Rules
from services.allocator.core.config import Policy
from services.allocator.core.decide import Decided
from services.allocator.core.state import State
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.rolling import Rolling
from tests.regular_streams import SHAPES

POLICY = Policy(iterations=4, forecast_wait_ms=0, replan_s=1800)
LAUNCH_MS = 5_000


@pytest.mark.parametrize("name", ["an hour less a little", "whole steps", "pairs", "two nodes, a gang"])
def test_a_promised_start_never_moves_later(name: str) -> None:
    day = SHAPES[name].day(priority=1)
    rules = ChangeRules(cluster="c0", rules=Rules(version=1, planned_starts=PlannedStarts(nodes_min=1)), ordered_ms=0)
    said: list[Promised] = []

    def observe(_: State, decided: Decided) -> None:
        said.extend(effect for effect in decided.record.effects if isinstance(effect, Promised))

    rolling = Rolling(
        day, Beliefs(day, Level.LIMIT), POLICY, launch_s=LAUNCH_MS / 1000, observe=observe, orders=[rules]
    )
    starts = {attempt.job_id: attempt.start_ms for attempt in rolling.play().attempts}
    moments = [effect.start_ms for effect in said if effect.job_id == "v0"]
    assert moments, "it is big, and has to wait"
    assert moments == sorted(moments, reverse=True)
    assert [effect.cause for effect in said if effect.cause] == []
    assert starts["v0"] <= moments[-1] + 2 * LAUNCH_MS
