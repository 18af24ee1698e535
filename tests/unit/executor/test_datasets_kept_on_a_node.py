"""A node tells the datasets in its folder when it starts, and again once others are there."""

from __future__ import annotations

from pathlib import Path

from schemas.executions import NodeReported
from services.executor.shell.dataset_folder import LOOK_PERIOD_S, DatasetFolder
from tests.unit.executor.executor_rig import Rig, virtually


def test_names_are_those_a_report_can_carry_and_an_unreadable_folder_has_none(tmp_path: Path) -> None:
    for name in ("c4-en", ".part", "with space", "b"):
        (tmp_path / name).mkdir()
    assert DatasetFolder(str(tmp_path)).names() == ["b", "c4-en"]
    assert DatasetFolder(str(tmp_path / "nowhere")).names() == []
    assert DatasetFolder().names() == []


def test_a_node_reports_again_once_a_dataset_was_brought(tmp_path: Path) -> None:
    (tmp_path / "c4").mkdir()

    async def scenario(rig: Rig) -> list[list[str]]:
        rig.dataset_folder = str(tmp_path)
        await rig.start()
        await rig.wait_s(3 * LOOK_PERIOD_S)
        (tmp_path / "wiki").mkdir()
        await rig.wait_s(3 * LOOK_PERIOD_S)
        return [event.datasets for event in rig.events(NodeReported)]

    assert virtually(scenario) == [["c4"], ["c4", "wiki"]]
