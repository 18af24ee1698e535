"""A process that dies once is back at once; one that keeps dying is slowed down, then given up."""

from __future__ import annotations

import pytest

from deploy.local.specification import RestartPolicy

POLICY = RestartPolicy(back_off_s=(0.0, 1.0, 5.0), restarts_max=4, first_tries_max=2)


@pytest.mark.parametrize(("deaths", "pause_s"), [(1, 0.0), (2, 1.0), (3, 5.0), (4, 5.0), (5, None)])
def test_pauses_grow_and_end(deaths: int, pause_s: float | None) -> None:
    assert POLICY.pause_s(exit_code=1, recent_deaths=deaths) == pause_s


@pytest.mark.parametrize(("deaths", "pause_s"), [(1, 0.0), (2, None)])
def test_a_process_that_was_never_ready_gets_fewer_tries(deaths: int, pause_s: float | None) -> None:
    assert POLICY.pause_s(exit_code=1, recent_deaths=deaths, was_ready=False) == pause_s


def test_when_decides_first() -> None:
    assert RestartPolicy(when="never").pause_s(1, 1) is None
    assert RestartPolicy(when="on_failure").pause_s(0, 1) is None
    assert RestartPolicy(when="on_failure").pause_s(1, 1) == 0.0
    assert RestartPolicy(when="always").pause_s(0, 1) == 0.0
