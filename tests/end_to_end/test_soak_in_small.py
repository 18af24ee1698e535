"""The soak in small: numbered jobs of every fate while each process and the broker are killed and second workers come: the same ends
as undisturbed and as the script says, nothing twice, and a bill that is what the executions say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.soak.kills import VICTIMS
from bench.soak.run import SoakOptions, soak
from bench.soak.stack import CLUSTERS
from schemas.status import FINAL_STATES

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1800)]
EVENTS = 2_000


def test_kills_at_random_moments_change_no_end_and_no_bill(tmp_path: Path) -> None:
    options = SoakOptions(events=EVENTS, seed=7, gpus=32, kills=1, second_kills=0)
    result = soak(options, tmp_path, lambda run, progress: None)
    calm, disturbed = result.undisturbed, result.disturbed
    print(
        f"undisturbed {calm.took_s} s, disturbed {disturbed.took_s} s, {disturbed.jobs} jobs, {disturbed.decisions_by}"
    )
    assert result.wrong == []
    assert sorted(kill.name for kill in disturbed.kills) == sorted(VICTIMS)
    assert all(disturbed.certain[f"jobs {state.value}"] > 0 for state in FINAL_STATES)
    assert disturbed.metered_gpu_h > 0
    assert set(disturbed.decisions_by) == set(CLUSTERS)
