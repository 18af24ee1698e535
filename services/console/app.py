"""All commands of `gpugrid` on one page. `build_app` wires names to functions; nothing is registered at import."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from services.console import (
    cli_backtest,
    cli_conform,
    cli_forecast,
    cli_grid,
    cli_jobs,
    cli_log,
    cli_page,
    cli_policy,
    cli_reports,
    cli_reserve,
    cli_runs,
    cli_stack,
    migration_command,
    plan_command,
)
from services.console.errors import ConsoleError
from services.console.session import Session

JOBS, GRID, FORECAST, LOG, STACK = "Jobs", "Grid and nodes", "Forecasts", "Log and traces", "Stack"


class GpugridGroup(TyperGroup):
    """Turns the console's errors into one sentence on standard error and their exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConsoleError as error:
            print(f"gpugrid: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print("gpugrid: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


def build_app() -> typer.Typer:
    """The command-line application. Handing `obj=Session(...)` to it replaces broker and clock (tests do)."""
    app = typer.Typer(
        name="gpugrid",
        cls=GpugridGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=__doc_for_people__,
    )
    app.callback()(_options)
    add = _adder(app)
    add("submit", cli_jobs.submit, JOBS)
    add("cancel", cli_jobs.cancel, JOBS)
    add("change", cli_jobs.change, JOBS)
    add("jobs", cli_jobs.jobs, JOBS)
    add("why", cli_jobs.why, JOBS)
    add("checkpoint", cli_runs.checkpoint, JOBS)
    add("logs", cli_runs.logs, JOBS)
    add("events", cli_runs.events, JOBS)
    add("grid", cli_grid.grid, GRID)
    add("nodes", cli_grid.nodes, GRID)
    add("plan", plan_command.plan, GRID)
    add("diagnose", cli_reports.diagnose, GRID)
    add("migrations", migration_command.migrations, GRID)
    add("drain", cli_grid.drain, GRID)
    add("undrain", cli_grid.undrain, GRID)
    add("forget", cli_grid.forget, GRID)
    add("partition", cli_grid.partition, GRID)
    add("reserve", cli_reserve.reserve, GRID)
    add("release", cli_reserve.release, GRID)
    add("reservations", cli_reserve.reservations, GRID)
    app.add_typer(cli_policy.build_policy(), name="policy", rich_help_panel=GRID)
    app.add_typer(cli_forecast.build_forecast(), name="forecast", rich_help_panel=FORECAST)
    add("conform", cli_conform.conform, LOG)
    add("trace", cli_log.trace, LOG)
    add("latency", cli_reports.latency, LOG)
    add("report", cli_reports.report, LOG)
    add("decisions", cli_log.decisions, LOG)
    add("replay-decision", cli_log.replay_decision, LOG)
    add("audit", cli_log.audit, LOG)
    add("dead-letters", cli_log.dead_letters, LOG)
    add("topics", cli_log.topics, LOG)
    add("up", cli_stack.up, STACK)
    add("page", cli_page.page, STACK)
    add("top", cli_page.top, STACK)
    add("status", cli_stack.status, STACK)
    add("doctor", cli_stack.doctor, STACK)
    add("down", cli_stack.down, STACK)
    add("demo", cli_stack.demo, STACK)
    add("simulate", cli_stack.simulate, STACK)
    add("backtest", cli_backtest.backtest, STACK)
    add("serve-stack", cli_stack.serve_stack, STACK, hidden=True)
    return app


__doc_for_people__ = """\
Which job runs on which GPU, when, and why.

\b
Try:  gpugrid demo                      a real day, replayed in two minutes
      gpugrid up                        start the stack and leave it running
      gpugrid submit --gpus 2,4 -- python train.py
      gpugrid jobs                      what runs, what waits
      gpugrid why training-4f9k2        why it waits and when it will start
      gpugrid grid                      GPUs and time steps in colour
      gpugrid down                      stop the stack
"""


def _adder(app: typer.Typer) -> Any:
    def add(name: str, function: Any, panel: str, **settings: Any) -> None:
        app.command(name, rich_help_panel=panel, **settings)(function)

    return add


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"gpugrid {version('gpugrid')}")
        except PackageNotFoundError:
            print("gpugrid, run from its source folder without being installed")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            envvar="GPUGRID_BOOTSTRAP", metavar="HOST:PORT", help="Kafka broker; left out: the running stack's."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--stack", envvar="GPUGRID_STACK", help="Which local stack, if several run.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
    if ctx.obj is None:
        ctx.obj = Session(bootstrap=bootstrap, stack_name=name)
