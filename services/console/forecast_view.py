"""Forecasts and their scores for people (tables) and programs (documents): the same numbers in both."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from services.console import forecast_pictures
from services.console.durations import duration_text
from services.console.tables import plain_table
from services.forecaster.core.demand_scores import Rates
from services.forecaster.shell.evaluation import DemandReport, DurationReport

if TYPE_CHECKING:
    from rich.table import Table

    from services.console.session import Session
    from services.forecaster.shell.explanation import Explanation, FactsSay

FEATURES_SHOWN = 6
LARGE_GROUP_TEXT = "88–92 % (below 1,000 runs: within chance of 90 %)"


def explanation_document(one: Explanation) -> dict[str, Any]:
    """All of it, for programs."""
    return {**asdict(one), "sizes": [msgspec.to_builtins(size) for size in one.sizes]}


def show_explanation(session: Session, one: Explanation) -> None:
    """Sizes, then why."""
    session.print(f"{one.job_id}: model {one.model}" + (f" (trained on {one.trained_on})" if one.trained_on else ""))
    session.print(_sizes_table(one))
    if one.facts is not None:
        session.print(_facts_text(one, one.facts))
    session.print("\n" + _rests_on(one))
    levels = plain_table("HISTORY OF", "KEY", "RUNS", "ENDED", "P50", "P90", right=("RUNS", "ENDED", "P50", "P90"))
    for level in one.levels:
        levels.add_row(
            level.level, level.key, str(level.starts), f"{level.weight:g}",
            duration_text(level.p50_s), duration_text(level.p90_s),
        )  # fmt: skip
    session.print(levels)
    if not one.moved:
        session.print("\nNo model moved it.")
    else:
        session.print(
            f"\nThe model, at its trust: a usual job × {one.usual_p50_factor:.2f} (P50), × {one.usual_p90_factor:.2f} (P90);"
            " what is particular here:"
        )
        session.print(_moved_table(one))
    session.print(
        f"Then P90 gets its margin (× {one.margin_factor:.2f}) and the time limit ({duration_text(one.limit_s)})."
    )


def _sizes_table(one: Explanation) -> Table:
    told = any(size.memory_mib is not None for size in one.sizes)
    memory = ("MEMORY P50", "P90 ", "TOO MUCH") if told else ()
    table = plain_table("GPUS", "P50", "P90", *memory, "", right=("GPUS", "P50", "P90", *memory))
    for size in one.sizes:
        note = "asked for; the other sizes are scaled from it" if size.gpus == one.asked_gpus else ""
        cells = [str(size.gpus), duration_text(size.p50_s), duration_text(size.p90_s)]
        if told:
            cells += [_gib(size.memory_mib), _gib(size.memory_p90_mib), _share(size.out_of_memory)]
        table.add_row(*cells, note)
    return table


def _facts_text(one: Explanation, facts: FactsSay) -> str:
    parts = ", ".join(f"{name} {share:.0%}" for name, share in facts.parts.items())
    text = (
        f"\nIts facts alone say {duration_text(facts.p50_s)} to {duration_text(facts.p90_s)} on {one.asked_gpus} GPUs ({parts});"
        f" they count {facts.share:.0%}, history the rest."
    )
    if facts.memory:
        needs = ", ".join(f"{name} {_gib(mib)}" for name, mib in facts.memory.items())
        text += f" Memory of one GPU: {needs}; the card has {_gib(facts.card_mib)}."
    return text


def _gib(mib: int | None) -> str:
    return "–" if mib is None else f"{mib / 1024:.1f} GiB"


def _rests_on(one: Explanation) -> str:
    if one.nearest < 0:
        return "Nothing like it has been seen: this is the day-one prior, wide on purpose."
    near = one.levels[one.nearest]
    strange = " Its team is not known, so take it as a guess." if one.prior else ""
    return (
        f"It rests on {near.starts} runs of the same {near.level} ({near.key}); history alone says"
        f" {duration_text(one.history_p50_s)} to {duration_text(one.history_p90_s)}.{strange}"
        " ENDED counts older runs less, and each line leans on the one above."
    )


def _moved_table(one: Explanation) -> Table:
    table = plain_table("FEATURE", "VALUE", "P50", "P90", "MEANING", right=("VALUE", "P50", "P90"))
    for moved in one.moved[:FEATURES_SHOWN]:
        value = "–" if moved.value is None else f"{moved.value:.3g}"
        table.add_row(moved.feature, value, f"× {moved.p50_factor:.2f}", f"× {moved.p90_factor:.2f}", moved.meaning)
    return table


def show_durations(session: Session, report: DurationReport, svg: Path | None, as_json: bool) -> None:
    """Methods side by side, then where P90 is right."""
    if svg is not None:
        forecast_pictures.write_durations(report, svg)
    if as_json:
        document = asdict(report)
        del document["predictions"]
        session.json(document)
        return
    table = plain_table(
        "METHOD", "RUNS", "FACTOR", "P90 COVERS", "PINBALL", "SHORT: RECALL", "PRECISION",
        right=("RUNS", "FACTOR", "P90 COVERS", "PINBALL", "SHORT: RECALL", "PRECISION"),
    )  # fmt: skip
    for name, score in report.methods.items():
        short = report.short[name]
        table.add_row(
            name, f"{score.runs:,}", f"{score.factor:.2f}", f"{score.coverage:.1%}", f"{score.pinball:.3f}",
            _share(short.recall), _share(short.precision),
        )  # fmt: skip
    session.print(table)
    session.print(f"\nP90 of ours, which should cover {LARGE_GROUP_TEXT}:")
    groups = plain_table("GROUP", "RUNS", "COVERED", "", right=("RUNS", "COVERED"))
    for label, covered in (("", report.by_month), ("GPUs ", report.by_size)):
        for one in covered:
            groups.add_row(label + one.name, f"{one.runs:,}", f"{one.coverage:.1%}", "" if one.right else "off")
    session.print(groups)
    if report.dirty_rows:
        session.print(
            f"\nRows with a broken cell, forecast but not scored: {report.dirty_rows:,}. {report.dirty_first}"
        )


def show_demand(session: Session, report: DemandReport, rates: Rates, svg: Path | None, as_json: bool) -> None:
    """The sum of all clients, then the largest."""
    if svg is not None:
        forecast_pictures.write_demand(report, rates, svg)
    if as_json:
        session.json(
            {
                "forecasts": len(report.days),
                "total": {name: asdict(score) for name, score in report.total.items()},
                "clients": {
                    client: {name: asdict(score) for name, score in scores.items()}
                    for client, scores in report.clients.items()
                },
            }
        )
        return
    names = list(report.total)
    session.print(
        f"{len(report.days):,} forecasts, 24 h ahead; (quantile loss of P50 + P90) ÷ load, and how much P90 covers:"
    )
    columns = [name.upper() for name in names]
    table = plain_table("CLIENT", "LOAD", *columns, right=("LOAD", *columns))
    for client, scores in {"all": report.total, **report.clients}.items():
        cells = [f"{scores[name].loss:.3f} {scores[name].coverage:.1%}" for name in names]
        table.add_row(client, f"{scores[names[0]].load:,.0f}", *cells)
    session.print(table)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
