"""What is lent to applications on top of what they ask for: idle GPUs near their own, never more than can be taken back at once."""

from __future__ import annotations

import numpy as np

from schemas.decisions import Placed, Scaled
from schemas.forecasts import DemandForecast
from schemas.jobs import ApplicationSpec, JobSpec, Kind
from schemas.nodes import Health
from schemas.records import Now
from services.allocator.core.commit import plan_effects
from services.allocator.core.config import Policy
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.pose import pose
from services.allocator.core.spare import idle_gpus
from services.allocator.core.state import App, Job, Node, Part, State
from services.allocator.core.verify_commit import verify_commit

NOW = Now(1_700_000_000_000, 1_700_000_000_000)
POLICY = Policy(forecast_wait_ms=0, iterations=4, spare_share=0.5)


def pool(nodes: int = 2) -> State:
    state = State(cluster="c0", now_ms=NOW.domain_ms)
    for number in range(nodes):
        name = f"n{number:02d}"
        state.nodes[name] = Node(name, "h100", number, 8, Health.USABLE, [True] * 8)
    return state


def application(state: State, asked: float, *, peak: int = 12, cap: int = 8, held: int = 0, switched: int = 0) -> App:
    spec = ApplicationSpec(team="s", user="u", priority=4, floor_gpus=1, peak_gpus=peak, switch_max=cap)
    forecast = DemandForecast(
        app_id="chat",
        cluster="c0",
        made_ms=NOW.domain_ms,
        start_ms=NOW.domain_ms,
        step_s=900,
        model="test",
        p50=[asked] * 96,
        p90=[asked] * 96,
    )
    app = App("chat", spec, "h100", NOW.domain_ms, "", forecast=forecast)
    if held:
        app.parts = [Part(node="n01", gpus=list(range(8 - held, 8)))]
        app.bucket, app.switched = NOW.domain_ms // POLICY.step_ms, switched
    state.apps["chat"] = app
    return app


def held_after(state: State, policy: Policy = POLICY) -> list[tuple[str, int]]:
    effects, _, _ = plan_effects(state, {}, policy, NOW)
    assert verify_commit(state, effects, policy, NOW) == []
    for effect in effects:
        if isinstance(effect, Scaled):
            return [(part.node, gpu) for part in effect.placed for gpu in part.gpus]
    return [(part.node, gpu) for part in state.apps["chat"].parts for gpu in part.gpus]


def test_idle_gpus_beside_its_own_are_lent() -> None:
    state = pool()
    application(state, 4.0, held=4)
    held = held_after(state)
    assert len(held) == 6
    assert {node for node, _ in held} == {"n01"}


def test_nothing_is_lent_without_a_share() -> None:
    state = pool()
    application(state, 4.0, held=4)
    assert len(held_after(state, Policy(forecast_wait_ms=0, iterations=4, spare_share=0.0))) == 4


def test_what_is_lent_can_be_taken_back_within_the_same_step() -> None:
    for cap in range(1, 9):
        for switched in range(cap + 1):
            state = pool()
            application(state, 4.0, cap=cap, held=4, switched=switched)
            extra = len(held_after(state)) - 4
            assert switched + 2 * extra <= cap


def test_never_above_the_peak_and_never_growing_on_itself() -> None:
    state = pool()
    app = application(state, 4.0, peak=5, held=4)
    assert len(held_after(state)) == 5
    app.parts = [Part(node="n01", gpus=[1, 2, 3, 4, 5, 6, 7])]  # more than asked for, by half already
    app.spec = ApplicationSpec(team="s", user="u", priority=4, floor_gpus=1, peak_gpus=12, switch_max=8)
    assert len(held_after(state)) <= 6


def test_a_job_gets_what_was_lent() -> None:
    state = pool(1)
    state.nodes["n01"] = state.nodes.pop("n00")
    state.nodes["n01"].node = "n01"
    application(state, 4.0, held=6)
    spec = JobSpec(
        kind=Kind.TRAINING, team="a", user="b", priority=1, sizes=[4], requested_gpus=4, template="simulated"
    )
    state.jobs["j"] = Job("j", spec, ["h100"], NOW.domain_ms, NOW.domain_ms, 1, NOW.wall_ms)
    effects, _, _ = plan_effects(state, {}, POLICY, NOW)
    assert verify_commit(state, effects, POLICY, NOW) == []
    assert [effect.job_id for effect in effects if isinstance(effect, Placed)] == ["j"]
    assert [sum(len(part.gpus) for part in effect.placed) for effect in effects if isinstance(effect, Scaled)] == [4]


def test_idle_means_idle_in_this_step_and_the_next() -> None:
    state = pool()
    application(state, 3.0, held=3)
    spec = JobSpec(
        kind=Kind.TRAINING, team="a", user="b", priority=1, sizes=[8], requested_gpus=8, template="simulated"
    )
    state.jobs["j"] = Job("j", spec, ["h100"], NOW.domain_ms, NOW.domain_ms, 1, NOW.wall_ms)
    posed = pose(state, "h100", 0, POLICY, NOW, frozenset())
    plan = plan_fast(posed.problem, 4)
    idle = idle_gpus(posed.problem, plan)
    used = np.zeros(16, bool)
    used[int(plan.first_gpu[0]) : int(plan.first_gpu[0]) + 8] = True
    used[plan.app_gpus(0, 0)] = True
    assert idle.tolist() == (~used).tolist()
