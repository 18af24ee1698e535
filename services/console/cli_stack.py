"""Commands about the stack itself, and about days replayed or simulated. Signatures and help here."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson
from services.console.session import Session
from services.replay.extract import DAYS

DAY_SEED = 2


class Driver(Enum):
    """How executors bring jobs about."""

    SIMULATED = "simulated"
    PROCESS = "process"


class Source(Enum):
    """Where node agents read GPUs."""

    SIMULATED = "simulated"
    NVML = "nvml"


def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """The running stacks: processes, ports, restarts, lag, logs. Exit code 1 if none runs or one isn't ready.

    \b
    gpugrid status
    """
    from services.console import stack_view
    from services.console.stack import run_root, running_stacks

    session: Session = ctx.obj
    stacks = [one for one in running_stacks(run_root(session.run_root)) if session.stack_name in (None, one.name)]
    rows = [stack_view.stack_row(stack) for stack in stacks]
    if as_json:
        session.json(rows)
    elif rows:
        session.print(stack_view.stacks_table(rows))
    if not rows:
        raise ConsoleError("No stack runs here; `gpugrid up` starts one.")
    if any(row["state"] != "ready" for row in rows):
        raise ConsoleError("Not everything is ready; `gpugrid doctor` says more.")


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """What is wrong and what to do: machine, stack, broker, services, nodes. Exit code 1 if something is.

    \b
    gpugrid doctor
    """
    from services.console import doctor as checks

    session: Session = ctx.obj
    found = checks.diagnose(session)
    if as_json:
        session.json(
            [
                {"name": one.name, "ok": one.ok, "advice": checks.is_advice(one), "sentence": one.sentence}
                for one in found
            ]
        )
    else:
        session.print(checks.findings_table(found))
    wrong = [one for one in found if not one.ok and not checks.is_advice(one)]
    if wrong:
        raise ConsoleError(wrong[0].sentence)


def down(ctx: typer.Context) -> None:
    """Stop the running stack and wait until nothing of it is left. Its topics stay for the next `up`.

    \b
    gpugrid down
    gpugrid --stack other down
    """
    from deploy.local import background

    session: Session = ctx.obj
    stack = session.stack()
    if stack is None:
        session.print("No stack runs here; nothing to stop.")
        return
    with session.spinner(f"Stopping {stack.name}"):
        background.down(stack.run_dir)
    session.print(f"{stack.name} is stopped; its topics and logs stay in {stack.run_dir}.")


def simulate(
    ctx: typer.Context,
    seed: Annotated[int, typer.Option(help="Picks the day and everything drawn in it.")] = DAY_SEED,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Days with seeds from --seed on: mean and worst.")] = 1,
    hours: Annotated[float, typer.Option(min=0.25, max=24.0, help="Length of the day.")] = 24.0,
    gpus: Annotated[int, typer.Option(min=16, max=4096, help="Size of the pool, nodes of 8.")] = 64,
    trace: Annotated[
        Path | None,
        typer.Option(help="A bundled day (2017-11-20) or a CSV of your own (docs/workload.md).", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, max=256, help="Days at a time; 0: one per core.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", help="Write everything there, too.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A day through all services without Kafka, in seconds, the same bytes every time; compared with FIFO and backfill.

    \b
    gpugrid simulate
    gpugrid simulate --seeds 10 --json-file days.json
    """
    from services.console import day_view

    session: Session = ctx.obj
    if trace is not None and not trace.is_file() and str(trace) not in DAYS:
        raise UsageError(f"{trace} is no file and no bundled day; there are {', '.join(DAYS)}.")
    document = day_view.simulate(
        session, seed=seed, seeds=seeds, hours=hours, gpus=gpus, trace=trace, workers=workers, quiet=as_json
    )
    if json_file is not None:
        day_view.write_json(json_file, document)
    if as_json:
        session.json(document)


def up(
    ctx: typer.Context,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=512, help="Nodes of the pool.", show_default="8, or as before")
    ] = None,
    node_gpus: Annotated[int, typer.Option(min=1, max=64, help="GPUs per node.")] = 8,
    catalog: Annotated[
        Path | None, typer.Option(help="Clusters and pools of your own (TOML).", show_default=False)
    ] = None,
    driver: Annotated[
        Driver, typer.Option(help="simulated: jobs only take time; process: they really run.")
    ] = Driver.SIMULATED,
    source: Annotated[Source, typer.Option(help="Where GPU readings come from.")] = Source.SIMULATED,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Kafka's port; 0: a free one.")] = 0,
    http_port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the HTTP intake; 0: a free one.")] = 0,
    page_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port of the page; 0: a free one.", show_default="8470, or a free one"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start Kafka and all services on the wall clock and leave them running; topics survive `down`.

    \b
    gpugrid up
    gpugrid up --nodes 1 --node-gpus 4 --driver process --source nvml
    """
    from services.console import local_stack, stack_view

    session: Session = ctx.obj
    wanted = local_stack.Wanted(
        nodes=nodes,
        node_gpus=node_gpus,
        catalog=catalog,
        driver=driver.value,
        source=source.value,
        kafka_port=port,
        http_port=http_port,
        page_port=page_port,
    )
    stack = local_stack.bring_up(session, wanted)
    row = stack_view.stack_row(stack)
    if as_json:
        session.json(row)
        return
    http = next((process["ports"]["http"] for process in row["processes"] if "http" in process["ports"]), None)
    session.print(f"{stack.name} is ready: Kafka at {stack.bootstrap}, HTTP at http://127.0.0.1:{http}/v1/jobs.")
    pages = [process["ports"]["page"] for process in row["processes"] if "page" in process["ports"]]
    session.print(f"The page: http://127.0.0.1:{pages[0]}/ (to submit and drain there: `gpugrid page --token`).")
    first = "--gpus 2,4 --simulate 10m" if driver is Driver.SIMULATED else "--gpus 1 -- python train.py"
    session.print(f"Next: gpugrid submit {first}; gpugrid jobs; gpugrid grid; gpugrid down")


def serve_stack(
    name: Annotated[str, typer.Argument(help="Name of the stack.")],
    run_dir: Annotated[Path, typer.Argument(help="Its run folder.")],
) -> None:
    """The supervisor that `up` starts in the background."""
    from services.console import local_stack

    local_stack.serve(name, run_dir)


def demo(
    ctx: typer.Context,
    speed: Annotated[float, typer.Option(min=1.0, max=20_000.0, help="Domain seconds per second.")] = 720.0,
    hours: Annotated[float, typer.Option(min=0.25, max=24.0, help="Length of the day.")] = 24.0,
    seed: Annotated[int, typer.Option(help="Picks the day and everything drawn in it.")] = DAY_SEED,
    gpus: Annotated[int, typer.Option(min=16, max=4096, help="Size of the pool, nodes of 8.")] = 64,
    trace: Annotated[
        Path | None,
        typer.Option(help="A bundled day (2017-11-20) or a CSV of your own (docs/workload.md).", show_default=False),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run folder: logs, spans, topics.")] = False,
    no_ui: Annotated[bool, typer.Option("--no-ui", help="Logs only, no live view.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything there.", show_default=False)
    ] = None,
) -> None:
    """Replay a real day on a real Kafka with all services, watch it live, compare it with FIFO and backfill.

    \b
    gpugrid demo
    gpugrid demo --hours 6 --seed 2 --json demo.json
    """
    from services.console.stack import run_root
    from services.replay.demo import DemoOptions, run_demo
    from services.replay.simulate import DayOptions

    session: Session = ctx.obj
    if trace is not None and not trace.is_file() and str(trace) not in DAYS:
        raise UsageError(f"{trace} is no file and no bundled day; there are {', '.join(DAYS)}.")
    options = DemoOptions(
        day=DayOptions(seed=seed, hours=hours, gpus=gpus, trace=trace),
        speed=speed,
        ui=False if no_ui else None,
        keep=keep,
        json_path=json_file,
        run_dir=run_root(session.run_root) / (session.stack_name or "demo"),
    )
    raise typer.Exit(run_demo(options))
