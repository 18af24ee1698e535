"""Whatever a valid event says, however absurd, the allocator decides: no event can stop a cluster."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.decisions import PlanImproved
from schemas.nodes import GpuState
from services.allocator.core.fold import FOLDS
from tests import build
from tests.allocator_driver import Driver
from tests.contract.random_events import events

IDS = {
    "job_id": st.sampled_from([f"j{i}" for i in range(4)]),
    "app_id": st.sampled_from(["a0", "a1"]),
    "node": st.sampled_from(["n00", "n01", "n02"]),
    "cluster": st.just(build.CLUSTER),
    "pool": st.just(build.POOL),
    "pools": st.just([build.POOL]),
    "gpus": None,
    "attempt": st.integers(1, 2),
}
"""Names from a small set, so that events meet each other."""


@st.composite
def related(draw: st.DrawFn) -> Any:
    """An event of any type the allocator listens to, about something that may exist."""
    kind = draw(st.sampled_from(sorted(FOLDS, key=lambda struct: struct.__name__)))
    event = draw(events(kind))
    changed = {
        name: draw(strategy)
        for name, strategy in IDS.items()
        if name in kind.__struct_fields__ and strategy is not None
    }
    if kind.__name__ == "NodeStateChanged":
        count = draw(st.integers(0, 9))
        changed["gpus"] = [GpuState(index=i, uuid=f"u{i}", healthy=draw(st.booleans())) for i in range(count)]
    return msgspec.structs.replace(event, **changed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(related(), min_size=1, max_size=8))
def test_no_valid_event_stops_a_cluster(history: list[Any]) -> None:
    driver = Driver()
    driver.give(build.node("n00"), build.node("n01", order=1))
    for event in history:
        driver.pass_ms(60_000)
        if isinstance(event, PlanImproved):  # full mode's answer: an input without a topic
            driver.take(event)
        else:
            driver.give(event)
