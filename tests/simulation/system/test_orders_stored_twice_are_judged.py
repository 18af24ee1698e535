"""A released window is not ordered again by an order that is stored twice, and who starts inside one is found all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from schemas.base import Event
from schemas.commands import ReleaseBlock, ReserveBlock
from schemas.decisions import Placed
from schemas.status import NodeGpus
from tests import build
from tests.simulation.system.check_reservations import ReservationsWalk
from tests.simulation.system.evidence import Evidence
from tests.simulation.system.world import CLUSTER, START_MS

RESERVE = ReserveBlock(
    reservation_id="r0",
    cluster=CLUSTER,
    node="n00",
    gpus=[],
    from_ms=START_MS,
    until_ms=START_MS + 600_000,
    ordered_ms=START_MS,
)
RELEASE = ReleaseBlock(reservation_id="r0", cluster=CLUSTER, ordered_ms=START_MS + 1)


def found(*orders: tuple[str, Event]) -> list[str]:
    """Of a log in which a job starts on the node after these orders."""
    inputs = [build.decision_input(event, offset, id=id) for offset, (id, event) in enumerate(orders)]
    start = Placed(
        job_id="j", attempt=1, pool="h100", gpus=1, placed=[NodeGpus(node="n00", gpus=[0])], p50_s=1.0, p90_s=1.0
    )
    record = SimpleNamespace(sequence=1, now_ms=START_MS + 60_000, inputs=inputs, effects=[start])
    return ReservationsWalk(cast("Evidence", cast("Any", SimpleNamespace(accepted=[record])))).walk().violations


def test_an_order_stored_again_after_its_release_reserves_nothing():
    assert found(("first", RESERVE), ("second", RELEASE), ("first", RESERVE)) == []


def test_another_order_of_the_same_window_does():
    assert found(("first", RESERVE), ("first", RESERVE)) != []
    assert found(("first", RESERVE), ("second", RELEASE), ("third", RESERVE)) != []
