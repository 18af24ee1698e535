"""Commands about jobs: submit, cancel, change, jobs, why. Signatures and help here; the work is imported when a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AcceptedModels, AcceptedPools, AsJson, Cause, Datasets, JobId, Speeds, duration
from services.console.session import Session, note_incomplete

if TYPE_CHECKING:
    from services.console.submission import Defaults

FOLLOW_S_DEFAULT = 30 * 86_400.0
"""How long `--wait` follows a job unless told otherwise: longer than any job may run by default."""


def submit(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | - | -- COMMAND…", help="A .json, .jsonl or .toml file, or what to run.", show_default=False
        ),
    ] = None,
    command: Annotated[str | None, typer.Option(help="What to run, as one string.", show_default=False)] = None,
    template: Annotated[str | None, typer.Option(help="Instead of a command.", show_default=False)] = None,
    simulate: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="10m", help="Run nothing, only take that long on the largest size."),
    ] = None,
    kind: Annotated[str, typer.Option(help="training, batch_inference, quantization or debug.")] = "training",
    gpus: Annotated[str, typer.Option(help="Block sizes it can use, powers of two.")] = "1",
    priority: Annotated[int, typer.Option(min=1, max=100, help="Value per useful GPU-step.")] = 5,
    team: Annotated[str, typer.Option(envvar="GPUGRID_TEAM", help="On whose quota and bill it is.")] = "default",
    user: Annotated[str | None, typer.Option(envvar="GPUGRID_USER", help="Default: you.", show_default=False)] = None,
    limit: Annotated[
        float | None, typer.Option(parser=duration, metavar="2h", help="Time limit; it only caps the forecast.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--id", help="Made up if left out.", show_default=False)] = None,
    memory: Annotated[int, typer.Option(help="MiB per GPU.", min=0)] = 0,
    pool: AcceptedPools = None,
    gpu_model: AcceptedModels = None,
    speed: Speeds = None,
    dataset: Datasets = None,
    queue: Annotated[str, typer.Option(help="Named in the rules of the cluster (`gpugrid policy show`).")] = "default",
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="It saves its work when asked by signal.")] = False,
    attempts: Annotated[int, typer.Option(min=1, max=100, help="Starts at most, failures included.")] = 1,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Repeatable.", show_default=False)] = None,
    cwd: Annotated[str | None, typer.Option(help="Working directory on the node.", show_default=False)] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Repeatable.", show_default=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; exit code 0 only if it completed.")] = False,
    timeout: Annotated[
        float, typer.Option(parser=duration, metavar="1h", help="Longest --wait.", show_default="30 days")
    ] = FOLLOW_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Submit a job (or a file of jobs and applications) and print its id and trace id.

    \b
    gpugrid submit --gpus 2,4 --limit 2h -- python train.py --epochs 3
    gpugrid submit --gpus 4 --pool h100 --pool a100 --speed h100=2.2 --speed a100=1 -- python train.py
    gpugrid submit job.toml --wait
    cat jobs.jsonl | gpugrid submit -

    \b
    job.toml:  kind = "training"
               sizes = [2, 4]
               priority = 5
               command = ["python", "train.py"]
    """
    from services.console import follow, submission

    session: Session = ctx.obj
    defaults = _defaults(session, team, user)
    template = "simulated" if simulate is not None else template
    flags = {"kind": kind, "priority": priority, "queue": queue, "memory_mib": memory, "template": template}
    flags |= {"time_limit_s": limit, "working_directory": cwd, "pools": list(pool or [])}
    flags |= {"gpu_models": list(gpu_model or []), "speeds": submission.numbers_of(speed or [])}
    flags |= {"datasets": submission.datasets_of(dataset or [])}
    if file := submission.file_among(words or []):
        if command or template:
            raise UsageError("Give a file or a command, not both.")
        text = sys.stdin.buffer.read() if file == "-" else _read_file(Path(file))
        events: list[Any] = list(submission.events_of_document(text, file, defaults))
    else:
        flags |= {
            "command": submission.command_of(words or [], command, template),
            "sizes": (sizes := submission.sizes_of(gpus)),
            "environment": submission.facts_of(env or []),
            "labels": submission.facts_of(label or []) | submission.simulated_labels(sizes, simulate),
            "checkpoint": {"mode": "signal"} if checkpoint else None,
            "restart": {"mode": "on_failure", "attempts_max": attempts} if attempts > 1 else None,
        }
        given = {name: value for name, value in flags.items() if value not in (None, [], {})}
        events = [submission.job_from_fields(given, job_id, defaults)]
    follow.submit(session, events, wait_s=timeout if wait else None, as_json=as_json)


def cancel(
    ctx: typer.Context,
    job_id: JobId,
    cause: Cause = "",
    anyway: Annotated[bool, typer.Option("--anyway", help="Send it even if nobody knows the job yet.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a job or an application; a running one is asked for a checkpoint first, then stopped.

    \b
    gpugrid cancel training-4f9k2 --cause "wrong data set" --wait
    """
    from services.console import follow, submission

    session: Session = ctx.obj
    now_ms = session.clock().now_ms()
    event = submission.cancellation(job_id, cause, now_ms)
    sent = session.run(follow.send_about(session, job_id, event, "cancelled", anyway=anyway), "Cancelling")
    _tell_sent(session, sent, f"Cancellation of {job_id} sent.", as_json=as_json and not wait)
    if wait:
        follow.wait_for(session, [job_id], timeout_s=FOLLOW_S_DEFAULT, as_json=as_json, any_end=True)


def change(
    ctx: typer.Context,
    job_id: JobId,
    priority: Annotated[int | None, typer.Option(min=1, max=100, help="New priority.", show_default=False)] = None,
    limit: Annotated[
        float | None, typer.Option(parser=duration, metavar="2h", help="New time limit.", show_default=False)
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Send it even if nobody knows the job yet.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change the priority or time limit of a job that waits or runs.

    \b
    gpugrid change training-4f9k2 --priority 8
    """
    from services.console import follow, submission

    session: Session = ctx.obj
    event = submission.change(job_id, session.clock().now_ms(), priority=priority, time_limit_s=limit)
    sent = session.run(follow.send_about(session, job_id, event, "changed", anyway=anyway), "Changing")
    _tell_sent(session, sent, f"Change of {job_id} sent.", as_json=as_json)


def jobs(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None, typer.Option(help="queued, running, completed, …; may be repeated.", show_default=False)
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team's.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="Ended jobs too (--state shows them as well).")] = False,
    as_json: AsJson = False,
) -> None:
    """What runs, what waits and why; ended jobs with --all.

    \b
    gpugrid jobs --state queued --team nlp
    gpugrid jobs --all --json | jq '.[] | select(.state == "failed")'
    """
    from services.console import queries, tables
    from services.console.facts import state_named

    session: Session = ctx.obj
    try:
        wanted = {state_named(name) for name in state or []}
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    world = session.run(queries.load_world(session), "Reading jobs")
    chosen = [
        view
        for view in tables.sorted_jobs(world.jobs.values())
        if (view.state in wanted if wanted else all_ or not view.final)
        and (team is None or (view.spec is not None and view.spec.team == team))
        and (user is None or (view.spec is not None and view.spec.user == user))
    ]
    note_incomplete(session, world.complete)
    if as_json:
        session.json([tables.job_row(view) for view in chosen])
        return
    if not chosen:
        ended = sum(view.final for view in world.jobs.values())
        session.print(f"No job matches; {ended} ended ones are kept (--all shows them).")
        return
    session.print(tables.jobs_table(chosen, session.clock().now_ms()))


def why(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Why a job waits, when it will start, who holds the GPUs, what its priority is made of, and what would help. Ended jobs, too.

    \b
    gpugrid why training-4f9k2
    """
    from services.console import follow, queries, sentences
    from services.console.similar import similar_names

    session: Session = ctx.obj
    now_ms = session.clock().now_ms()
    world = session.run(queries.load_world(session, forecasts=True), f"Reading about {job_id}")
    view = world.jobs.get(job_id)
    if view is None:
        submitted_ms = session.run(queries.submitted_ms_of(session, job_id), f"Looking for {job_id}")
        explanation = sentences.explain_unseen(job_id, submitted_ms, similar_names(job_id, sorted(world.jobs)), now_ms)
        if explanation.state == "unknown":
            raise ConsoleError(explanation.sentence)
    else:
        explanation = sentences.explain(view, world, now_ms)
        if view.state == "queued" and not view.is_application:
            from services.console import place_in_order

            known = session.run(place_in_order.load_allocator_state(session, view, world), f"Placing {job_id} in order")
            explanation = explanation if known is None else place_in_order.with_place(explanation, known)
    note_incomplete(session, world.complete)
    follow.show_explanation(session, explanation, as_json=as_json)


def _tell_sent(session: Session, sent: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        session.json(sent)
    else:
        session.print(f"{sentence} Trace {sent['trace_id']}; `gpugrid why {sent['id']}` shows what came of it.")


def _defaults(session: Session, team: str, user: str | None) -> Defaults:
    import getpass
    import secrets

    from services.console.submission import Defaults

    def new_id(kind: str) -> str:
        alphabet = "23456789abcdefghjkmnpqrstuvwxyz"
        return f"{kind.replace('_', '-')}-{''.join(secrets.choice(alphabet) for _ in range(6))}"

    if user is None:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = "unknown"
    return Defaults(team=team, user=user, now_ms=session.clock().now_ms(), new_id=new_id)


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None
