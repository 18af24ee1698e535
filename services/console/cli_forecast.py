"""`gpugrid forecast`: what a job will take and why, how good forecasts are on a trace, which models answer on the stack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson
from services.console.session import Session, note_incomplete

FILE_BYTES_MAX = 16 * 1024 * 1024
"""A job file; a trace may be larger."""
HELP = """\
What a job will take and why, how good the forecasts are on a trace, and which models answer now.

\b
gpugrid forecast job.json                 the same as: gpugrid forecast explain job.json
gpugrid forecast evaluate --trace philly_jobs.csv.gz --format philly
gpugrid forecast models                   of the running stack
"""


class ForecastGroup(TyperGroup):
    """Takes a file of jobs in place of a command for `explain` of that file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from services.console.submission import FILE_ENDINGS

        if args and (args[0] == "-" or args[0].endswith(FILE_ENDINGS)):
            args = ["explain", *args]
        return super().parse_args(ctx, args)


class Format(StrEnum):
    """What the trace's columns are."""

    PHILLY = "philly"
    RATES = "rates"
    HPC = "hpc"


class Target(StrEnum):
    """Which duration of a Philly job is meant."""

    SPAN = "span"
    RUN = "run"


def build_forecast() -> typer.Typer:
    """The three commands; only `models` needs a stack."""
    app = typer.Typer(cls=ForecastGroup, no_args_is_help=True, help=HELP)
    app.command("explain")(explain)
    app.command("evaluate")(evaluate)
    app.command("models")(models)
    return app


def explain(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="JOBFILE", help="A submission or a job's spec, JSON or TOML.", show_default=False)
    ],
    model: Annotated[str, typer.Option(metavar="bundled|none|FILE", help="Whose model and history.")] = "bundled",
    team: Annotated[str | None, typer.Option(help="If the file names none.", show_default=False)] = None,
    card: Annotated[str, typer.Option(metavar="NAME", help="GPU it would run on, for its speed and memory.")] = "H100",
    as_json: AsJson = False,
) -> None:
    """P50 and P90 per size, the history they rest on, and what moved them: offline, as a fresh forecaster would answer.

    A job that tells of its model (parameters, tokens, technique …) also gets its cost taken apart, and memory per size.

    \b
    gpugrid forecast explain job.json
    gpugrid forecast explain job.json --card "A100 80GB"
    gpugrid forecast explain job.toml --team vision --json | jq .sizes
    """
    from schemas.jobs import JobSubmitted
    from services.console.forecast_view import explanation_document, show_explanation
    from services.console.submission import Defaults, events_of_document
    from services.forecaster.shell.explanation import explain as explained
    from services.forecaster.shell.explanation import pool_of
    from services.forecaster.shell.model import ModelError

    session: Session = ctx.obj
    defaults = Defaults(
        team=team or "unknown", user="unknown", now_ms=session.clock().now_ms(), new_id=lambda kind: f"{kind}-1"
    )
    found = []
    for event in events_of_document(_read(file), file.name, defaults):
        if not isinstance(event, JobSubmitted):
            raise UsageError(f"{file}: {event.app_id} is an application; its demand is forecast from observed load.")
        try:
            found.append(explained(event, model, pools=[pool_of(card)]))
        except ModelError as error:
            raise UsageError(f"--model {model}: {error}") from None
    if as_json:
        documents = [explanation_document(one) for one in found]
        session.json(documents[0] if len(documents) == 1 else documents)
        return
    for one in found:
        show_explanation(session, one)


def evaluate(
    ctx: typer.Context,
    trace: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV, plain or .gz, to forecast and score.", show_default=False)
    ],
    layout: Annotated[
        Format,
        typer.Option(
            "--format",
            help="philly: submit_time, submit_s, num_gpus, span_s, run_s, vc. hpc: submit_s or start_s, run_s, procs, user"
            " (wait_s, app, req_time_s). rates: window_start_s, c0, c1 …",
            show_default=False,
        ),
    ],
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What came before, same columns.", show_default=False)
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write row,p50_s,p90_s per job in file order, or client,origin_s,window_start_s,p50,p90.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="DIR", help="Write pictures there.", show_default=False)] = None,
    from_row: Annotated[int, typer.Option(min=0, help="Jobs: forecast and score from this row on (0 = first).")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Jobs: read only so many rows.", show_default=False)] = None,
    target: Annotated[Target, typer.Option(help="Philly: span_s, or run_s where it is known.")] = Target.SPAN,
    retrain_days: Annotated[int, typer.Option(min=1, max=365, help="Jobs: days between two trainings.")] = 1,
    trust: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Jobs: share of the model's correction that counts.")
    ] = 1.0,
    warm_up_days: Annotated[
        int | None,
        typer.Option(min=1, max=365, help="Rates: days before the first forecast; 6, or 1 with --history."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a trace as it would have met it, and score that beside simple rules.

    Only what had ended before each submit is known (demand: before each day). The bundled model is not used: a model is
    trained on the way, on the trace and its history.

    \b
    gpugrid forecast evaluate --trace philly_jobs.csv.gz --format philly --from-row 18324 --limit 60324
    gpugrid forecast evaluate --trace later.csv --history earlier.csv.gz --format rates --predictions out.csv
    """
    from services.console import forecast_view
    from services.forecaster.shell import evaluation, trace_files
    from services.forecaster.shell.training import TraceError

    session: Session = ctx.obj
    try:
        with _progress() as tell:
            if layout is Format.RATES:
                rates = trace_files.read_rates(trace, history)
                demand = evaluation.evaluate_demand(rates, warm_up_days or (6 if history is None else 1), tell)
            else:
                attempts = target is Target.RUN
                tell("reading", 0.0)
                jobs = trace_files.read_jobs(trace, layout.value, attempts=attempts, limit=limit)
                before = None if history is None else trace_files.read_jobs(history, layout.value, attempts=attempts)
                choices = evaluation.DurationChoices(from_row, retrain_days, trust)
                durations = evaluation.evaluate_durations(jobs, before, choices, tell)
    except TraceError as error:
        raise UsageError(str(error)) from None
    try:
        if layout is Format.RATES:
            if predictions is not None:
                evaluation.write_demand(demand, rates, predictions)
            forecast_view.show_demand(session, demand, rates, svg, as_json)
        else:
            if predictions is not None:
                evaluation.write_durations(durations, predictions)
            forecast_view.show_durations(session, durations, svg, as_json)
    except OSError as error:
        raise ConsoleError(f"Can't write {error.filename}: {error.strerror}.") from None


def models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """The duration model that answers for each cluster, how its last training was judged, and whether forecasts drift.

    Forecasters train beside their work, publish the choice on the topic `models`, and take a model back that turns out worse.

    \b
    gpugrid forecast models
    gpugrid forecast models --json | jq '.[] | {cluster, watch: .watched.watch}'
    """
    from services.console import models_view

    session: Session = ctx.obj
    found, complete = session.run(models_view.load_models(session), "Reading models")
    note_incomplete(session, complete)
    if as_json:
        session.json(models_view.models_document(found))
        return
    if not found:
        session.print("Nothing has been learnt yet: forecasts rest on the bundled model and on history.")
        return
    session.print(models_view.models_table(found, session.clock().now_ms()))
    for line in models_view.reasons(found):
        session.print(line)


def _read(file: Path) -> bytes:
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(FILE_BYTES_MAX)
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{file} is larger than {FILE_BYTES_MAX // 2**20} MiB; no job needs that.")
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"Can't read {file}: {error.strerror}.") from None


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; elsewhere a line whenever another kind of work begins."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=1.0)
            yield lambda what, share: bar.update(task, description=what, completed=share)
        return
    said: list[str] = []

    def tell(what: str, share: float) -> None:
        del share
        if not said or said[-1] != what:
            said.append(what)
            print(f"{what} …", file=sys.stderr, flush=True)

    yield tell
