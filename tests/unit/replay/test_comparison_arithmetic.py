"""Mean and worst over days, gains over the simple policies, and the catalog of a day."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from schemas.catalog import read_catalog
from services.replay.core.baselines import fifo
from services.replay.core.catalog import catalog_of, node_names, toml_of
from services.replay.core.comparison import compare, with_baselines
from services.replay.core.day import Day
from services.replay.core.workload import build_day
from services.replay.shell.bundled import bundled_trace
from services.replay.shell.tables import comparison_table, day_table, gains_line, span_text


@pytest.fixture(scope="module")
def day() -> Day:
    return build_day(bundled_trace(), "2017-11-09", 1, hours=6.0)


def test_mean_and_worst(day: Day) -> None:
    base = fifo(day)
    days = []
    for value, utilization in ((2.0, 0.1), (1.5, -0.05)):
        ours = replace(base, value=base.value * value, utilization=base.utilization + utilization)
        days.append(with_baselines(day, ours))
    comparison = compare(days)
    assert comparison.value_gain["fifo"].mean == pytest.approx(0.75)
    assert comparison.value_gain["fifo"].worst == pytest.approx(0.5)
    assert comparison.utilization_gain["fifo"].mean == pytest.approx(0.025)
    assert comparison.utilization_gain["fifo"].worst == pytest.approx(-0.05)
    ours_summary = comparison.policies[2]
    assert ours_summary.policy == "gpugrid"
    assert ours_summary.value.worst == pytest.approx(base.value * 1.5)


def test_waits_and_unmet_are_worst_when_highest(day: Day) -> None:
    base = fifo(day)
    days = [with_baselines(day, replace(base, unmet_gpu_hours=unmet)) for unmet in (1.0, 3.0)]
    summary = compare(days).policies[2]
    assert (summary.unmet_gpu_hours.mean, summary.unmet_gpu_hours.worst) == (2.0, 3.0)


def test_tables_show_every_policy(day: Day) -> None:
    outcomes = with_baselines(day, fifo(day))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(day_table(outcomes), gains_line(outcomes), comparison_table(compare([outcomes])))
    text = console.export_text()
    assert all(name in text for name in ("FIFO", "priority backfill", "gpugrid", "utilization", "waiting, by"))


def test_catalog_of_a_day_reads_back(day: Day) -> None:
    catalog = catalog_of(day)
    assert read_catalog(toml_of(catalog).encode()) == catalog
    assert node_names(day) == [f"n{number:02d}" for number in range(8)]


def test_spans_of_time_in_words() -> None:
    assert [span_text(value) for value in (12, 600, 7200)] == ["12s", "10m", "2.0h"]
