"""An application on a draining node is never short of its floor where GPUs are free elsewhere and the deadline leaves enough steps; within
its switch cap, never above its peak but for what is on its way out, and off the node at the deadline in any case.
"""

from __future__ import annotations

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import DrainNode
from schemas.forecasts import DemandForecast
from tests import build
from tests.allocator_driver import POLICY, Driver

STEP_MS = POLICY.step_ms
HORIZON = 48


def forecast(driver: Driver, gpus: list[float]) -> DemandForecast:
    return DemandForecast(
        app_id="web",
        cluster=build.CLUSTER,
        made_ms=driver.now_ms,
        model="test",
        start_ms=driver.now_ms // STEP_MS * STEP_MS,
        step_s=POLICY.step_s,
        p50=gpus,
        p90=gpus,
    )


@settings(max_examples=40, deadline=None)
@given(
    floor=st.integers(1, 6),
    more=st.integers(0, 2),
    switch_max=st.integers(1, 4),
    deadline_steps=st.floats(0, 9),
    begin_share=st.floats(0, 0.99),
    looks=st.integers(1, 3),
    demand=st.none() | st.integers(0, 8),
    rival=st.booleans(),
)
def test_a_drain_costs_an_application_nothing_it_can_have_elsewhere(
    floor: int,
    more: int,
    switch_max: int,
    deadline_steps: float,
    begin_share: float,
    looks: int,
    demand: int | None,
    rival: bool,
) -> None:
    driver = Driver(at_ms=build.START_MS // STEP_MS * STEP_MS + round(begin_share * STEP_MS))
    driver.give(build.node("n00", order=0), build.node("n01", order=1))
    peak = floor + more
    if rival:  # waits for the very GPUs; applications come first
        driver.give(build.accepted("big", 8, at_ms=driver.now_ms), build.forecast("big", {8: 1_000_000}))
    driver.give(build.application("web", floor=floor, peak=peak, switch_max=switch_max))
    if demand is not None:
        driver.give(forecast(driver, [float(demand)] * HORIZON))
    driver.pass_ms(8 * STEP_MS).give()
    app = driver.state.apps["web"]
    nodes = {part.node for part in app.parts}
    free = {"n00": 8, "n01": 8}
    for job in driver.state.jobs.values():
        for part in job.parts:
            free[part.node] -= len(part.gpus)
    node = sorted(nodes)[0]
    there = sum(len(part.gpus) for part in app.parts if part.node == node)
    if len(nodes) > 1 or free[{"n00": "n01", "n01": "n00"}[node]] < peak:
        return  # the other node is taken: it loses what it has at the deadline, whatever is wanted
    start_ms = driver.now_ms
    deadline_ms = start_ms + round(deadline_steps * STEP_MS)
    driver.give(DrainNode(node=node, cluster="c0", ordered_ms=start_ms, deadline_s=(deadline_ms - start_ms) / 1000))
    in_time = (deadline_ms - start_ms) // STEP_MS - 1 >= ceil(floor / switch_max)
    while driver.now_ms < deadline_ms + 2 * STEP_MS:
        app = driver.state.apps["web"]
        on_it = sum(len(part.gpus) for part in app.parts if part.node == node)
        elsewhere = sum(len(part.gpus) for part in app.parts if part.node != node)
        assert elsewhere <= peak
        assert app.switched <= switch_max
        if driver.now_ms >= deadline_ms:
            assert on_it == 0
        if in_time:
            assert on_it + elsewhere >= min(floor, there)
        next_ms = driver.now_ms + STEP_MS // looks
        driver.pass_ms((deadline_ms if driver.now_ms < deadline_ms < next_ms else next_ms) - driver.now_ms).give()
    if in_time:
        app = driver.state.apps["web"]
        assert sum(len(part.gpus) for part in app.parts) >= floor
