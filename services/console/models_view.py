"""The models that answer, from the `models` topic: per cluster the newest choice with its scores, and how forecasts do now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.codec import DecodeError, decode_record
from schemas.models import ModelChosen, ModelWatched
from services.console.durations import duration_text
from services.console.read import newest_per_key, read_topics
from services.console.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from services.console.session import Session

TOPIC = "models"


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """What is known of one cluster's model. `chosen` None: nothing was trained yet, the one it started with answers."""

    cluster: str
    chosen: ModelChosen | None
    watched: ModelWatched | None


async def load_models(session: Session) -> tuple[list[ClusterModel], bool]:
    """Every cluster the topic tells of, and whether it was read to its end."""
    reading = await read_topics(session.bus(), [TOPIC], wall_s=session.clock().wall_s)
    chosen: dict[str, ModelChosen] = {}
    watched: dict[str, ModelWatched] = {}
    for record in newest_per_key(reading.of(TOPIC)).values():
        try:
            event = decode_record(record).event
        except DecodeError:
            continue  # of a later version: its key is shown once this program is as new
        if isinstance(event, ModelChosen):
            chosen[event.cluster] = event
        elif isinstance(event, ModelWatched):
            watched[event.cluster] = event
    names = sorted({*chosen, *watched})
    return [ClusterModel(name, chosen.get(name), watched.get(name)) for name in names], reading.complete


def models_document(found: list[ClusterModel]) -> list[dict[str, Any]]:
    """All but the trees themselves, for programs."""
    document = []
    for one in found:
        row: dict[str, Any] = {"cluster": one.cluster, "chosen": None, "watched": msgspec.to_builtins(one.watched)}
        if one.chosen is not None:
            row["chosen"] = msgspec.to_builtins(one.chosen)
            for role in ("current", "previous"):
                model = row["chosen"].get(role)
                if model is not None:
                    del model["boosters"]
        document.append(row)
    return document


def models_table(found: list[ClusterModel], now_ms: int) -> Table:
    """One line per cluster."""
    table = plain_table(
        "CLUSTER", "MODEL", "RUNS", "TRAINED", "LAST TRAINING", "FORECASTS", "LAST RUNS", "P90 COVERS", "FACTOR", "LOSS",
        "HISTORY'S", right=("RUNS", "TRAINED", "LAST RUNS", "P90 COVERS", "FACTOR", "LOSS", "HISTORY'S"),
    )  # fmt: skip
    for one in found:
        model = None if one.chosen is None else one.chosen.current
        if model is not None:
            age_s = max(0.0, (now_ms - model.window_to_ms) / 1000)
            cells = [model.version, f"{model.runs:,}", f"{duration_text(age_s)} ago"]
        elif one.chosen is not None:
            cells = ["history alone", "", ""]
        else:
            cells = ["" if one.watched is None else one.watched.score.version, "", ""]
        cells.append("none yet" if one.chosen is None else one.chosen.choice.value.replace("_", " "))
        if one.watched is None:
            cells += ["", "", "", "", "", ""]
        else:
            score = one.watched.score
            cells += [
                one.watched.watch.value, str(score.runs), f"{score.coverage:.1%}", f"{score.factor:.2f}",
                f"{score.pinball:.3f}", f"{one.watched.history.pinball:.3f}",
            ]  # fmt: skip
        table.add_row(one.cluster, *cells)
    return table


def reasons(found: list[ClusterModel]) -> list[str]:
    """Why each model answers, and what its watch saw."""
    lines = []
    for one in found:
        if one.chosen is not None:
            lines.append(
                f"{one.cluster}, last training: {one.chosen.choice.value.replace('_', ' ')}, {one.chosen.reason}."
            )
        if one.watched is not None:
            lines.append(f"{one.cluster}, now: {one.watched.watch.value}, {one.watched.reason}.")
    return lines
