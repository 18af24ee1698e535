"""The forecaster as a running service: model loaded and warm before it joins its group, the handler under faust, trainings beside.

Owns: which model and history a process starts from, and its metrics. Refuses: rules. Read next: `core/handler.py`, `trainer.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from schemas.catalog import Catalog
from schemas.deadletters import dead_letter
from schemas.jobs import JobAccepted, JobSpec, Kind
from schemas.messages import message
from schemas.records import Message, Now, Record
from services.forecaster.core.demand import DemandHistory
from services.forecaster.core.demand_rules import DAY_S
from services.forecaster.core.handler import SERVICE, SOURCE, ForecasterHandler, Settings
from services.forecaster.core.retraining import Rhythm
from services.forecaster.shell.model import MODEL_FILE, ModelError, as_published, load_model, model_of, read_card
from services.forecaster.shell.model_metrics import ModelMetrics
from services.forecaster.shell.trainer import COMMAND, Trainer
from services.runtime.config import ConfigError, ServiceConfig, catalog_in
from services.runtime.surroundings import serve_handler_in, surrounded

BUNDLED, NO_MODEL = "bundled", "none"

log = logging.getLogger(__name__)


class ForecasterConfig(ServiceConfig, frozen=True, kw_only=True):
    """`GPUGRID_CATALOG`: the catalog file. `GPUGRID_MODEL`: `bundled`, `none` (history alone), or a model file."""

    catalog: Annotated[str, Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1)] = BUNDLED
    step_s: Annotated[int, Meta(ge=60, le=86_400)] = 900
    """Step of demand and arrival forecasts; must divide a day."""
    demand_period_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """Domain seconds between two forecasts of one application."""
    retrain_period_s: Annotated[float, Meta(ge=0, le=31_536_000)] = Rhythm().period_s
    """Domain seconds between two trainings of a cluster's model; 0: never, and what others trained isn't used either."""
    retrain_runs_min: Annotated[int, Meta(ge=100, le=20_000)] = Rhythm().runs_min
    """Ended runs of a cluster from which its first model is trained."""
    retrain_judged_min: Annotated[int, Meta(ge=50, le=5_000)] = Rhythm().judged_min
    """Runs that must have ended since the last training, to judge the next one on."""
    training_priority: Literal["idle", "nice"] = "idle"
    """`idle`: trainings get what nobody else wants, so on a machine that is never idle they don't get done; `nice`: a little, always."""


def make_handler(catalog: Catalog, *, model: str = BUNDLED, settings: Settings | None = None) -> ForecasterHandler:
    """A handler with its model and the history the model was trained on, warm. Raises ModelError."""
    settings = settings or Settings()
    load = model_of if settings.rhythm.period_s > 0 else None
    if model == NO_MODEL:
        handler = ForecasterHandler(catalog, settings, load=load)
    else:
        path = MODEL_FILE if model == BUNDLED else Path(model)
        booster, seed = load_model(path)
        start = as_published(booster, read_card(path))
        handler = ForecasterHandler(catalog, settings, model=booster, seed=seed, load=load, start=start)
    warm_up(handler, catalog)
    return handler


def warm_up(handler: ForecasterHandler, catalog: Catalog) -> None:
    """Compile the kernels and touch the boosters on a handler of the same make, so that no job pays for it."""
    rehearsal = handler.fresh()
    spec = JobSpec(kind=Kind.TRAINING, team="warm-up", user="warm-up", priority=1, sizes=[1, 2], template="warm-up")
    accepted = JobAccepted(
        job_id="warm-up",
        cluster=catalog.default_cluster,
        pools=[],
        submitted_ms=0,
        accepted_ms=0,
        digest="",
        spec=spec,
    )
    carried = message(accepted, key="warm-up", id="warm-up", source="warm-up", time_ms=0)
    record = Record("jobs", 0, 0, carried.key, carried.value, carried.headers, 0)
    rehearsal.handle(record, Now(domain_ms=0, wall_ms=0))
    state = rehearsal.cluster(catalog.default_cluster)
    assert state is not None, "the rehearsal has just made it"
    history = state.durations.history
    history.finish(history.start(state.ledger.jobs["warm-up"].facts.subject, 0), 60.0, observed=True)
    demand = DemandHistory(state.step_s)
    demand.observe(DAY_S * 1000, float(DAY_S), 1.0, 1.0)
    demand.forecast(DAY_S * 1000, 1, 1.0)


async def run_forecaster(config: ForecasterConfig, environ: Mapping[str, str], stop: asyncio.Event) -> None:
    """Run until `stop` is set."""
    if 86_400 % config.step_s:
        raise ConfigError(f"GPUGRID_STEP_S is {config.step_s}: it must divide a day of 86400 s.")
    rhythm = Rhythm(config.retrain_period_s, config.retrain_runs_min, config.retrain_judged_min)
    settings = Settings(step_s=config.step_s, demand_period_s=config.demand_period_s, rhythm=rhythm)
    try:
        handler = make_handler(catalog_in(config.catalog), model=config.model, settings=settings)
    except ModelError as error:
        raise ConfigError(f"GPUGRID_MODEL: {error}") from None
    log.info("model %s is warm", config.model)
    async with surrounded(SERVICE, config, environ) as around:
        trainer = Trainer(handler, around.clock, (*COMMAND, config.training_priority))
        trainer.add_watcher(ModelMetrics(around.metrics.registry).show)
        training = asyncio.create_task(trainer.run())
        try:
            await serve_handler_in(around, handler, config, stop, dead_letter=unhandled)
        finally:
            await trainer.stop(training)


def unhandled(record: Record, error: Exception, now: Now) -> Message:
    """The dead letter of a record on which the handler itself failed: a fault of ours, kept with the original bytes."""
    detail = f"the forecaster failed on it: {error!r}; planners go on with the job's prior, report this"
    letter = dead_letter(record, service=SERVICE, reason="internal_error", detail=detail, now=now)
    origin = f"{record.topic}/{record.partition}"
    return message(letter, key=origin, id=f"{origin}/{record.offset}/failed", source=SOURCE, time_ms=now.domain_ms)
