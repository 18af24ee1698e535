"""What is wrong, in the order in which one would fix it: the machine, the stack, the broker, the services, the nodes.

Every check is one finding with one sentence that says what to do. Nothing here repairs anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from deploy.local.preflight import ADVICE, Finding, findings
from schemas.models import Watch
from schemas.nodes import Health as NodeHealth
from services.console import queries
from services.console.errors import ConsoleError
from services.console.facts import World
from services.console.health_view import LAG_RECORDS_MAX, healths
from services.console.models_view import ClusterModel, load_models
from services.console.read import topic_sizes
from services.console.session import Session
from services.console.stack import Stack, run_root
from services.console.tables import plain_table


def diagnose(session: Session) -> list[Finding]:
    """All findings. A broken earlier thing does not hide later ones, except that nothing is asked of a broker that is away."""
    root = run_root(session.run_root)
    stack = session.stack()
    found = findings(stack.run_dir if stack else _existing(root))
    found.extend(stack_findings(stack))
    try:
        sizes = session.run(_sizes(session), "Asking the broker")
        world = session.run(queries.load_world(session), "Reading the topics")
        models, _ = session.run(load_models(session), "Reading models")
    except ConsoleError as error:
        return [*found, Finding("broker", False, str(error))]
    where = session.bootstrap or (stack.bootstrap if stack else "the bus")
    found.append(Finding("broker", True, f"{where} answers and has {len(sizes)} topics."))
    found.extend(world_findings(world, sizes))
    found.extend(model_findings(models))
    return found


def model_findings(models: list[ClusterModel]) -> Iterator[Finding]:
    """Whether forecasts still come true; nothing before anything was learnt."""
    watched = [one.watched for one in models if one.watched is not None]
    drifting = [one for one in watched if one.watch is Watch.DRIFTING]
    for one in drifting:
        yield Finding(
            "forecasts",
            False,
            f"Forecasts of {one.cluster} drift ({one.reason}): the next training comes early; see `gpugrid forecast models`.",
        )
    if watched and not drifting:
        yield Finding(
            "forecasts", True, f"Forecasts of {len(watched)} clusters come true as they should, as far as known."
        )


def stack_findings(stack: Stack | None) -> Iterator[Finding]:
    """The supervisor's view and each process's own."""
    if stack is None:
        yield Finding(
            "stack", True, "No local stack runs (that is fine with --bootstrap; else `gpugrid up` starts one)."
        )
        return
    down = [process for process in stack.state.processes if process.state not in ("ready", "done")]
    if stack.state.state != "ready" or down:
        what = ", ".join(f"{process.name} is {process.state}" for process in down) or stack.state.failure
        log = down[0].log if down else str(stack.run_dir)
        yield Finding("stack", False, f"The stack {stack.name} is {stack.state.state} ({what}): see {log}.")
    else:
        count = len(stack.state.processes)
        yield Finding("stack", True, f"All {count} processes of {stack.name} are ready (in {stack.run_dir}).")
    restarted = [f"{process.name} {process.restarts}×" for process in stack.state.processes if process.restarts]
    if restarted:
        yield Finding(
            "restarts", False, f"Processes were restarted ({', '.join(restarted)}): see their logs in {stack.run_dir}."
        )
    pids = {process.pid for process in stack.state.processes}
    for one in healths(stack.run_dir):
        if one.pid not in pids and one.reason:
            continue  # left behind by a process that was killed; its successor writes its own
        lag = {topic: count for topic, count in one.lag.items() if count > LAG_RECORDS_MAX}
        if one.reason:
            yield Finding(one.instance_id, False, f"{one.instance_id} is not ready: {one.reason}.")
        elif lag:
            text = ", ".join(f"{count} records of {topic}" for topic, count in lag.items())
            yield Finding(
                one.instance_id,
                False,
                f"{one.instance_id} lags behind by {text}: it will catch up, or needs a faster machine.",
            )
        else:
            yield Finding(
                one.instance_id, True, f"{one.instance_id} is ready and lags by {sum(one.lag.values())} records."
            )


def world_findings(world: World, sizes: dict[str, int]) -> Iterator[Finding]:
    """What the topics show: silent nodes, nothing deciding, dead letters, unreadable records."""
    if not world.nodes:
        yield Finding(
            "nodes", False, "No node has reported: start agents and the telemetry service (`gpugrid up` does)."
        )
    silent = [
        name
        for name, node in sorted(world.nodes.items())
        if node.health in (NodeHealth.SUSPECT, NodeHealth.LOST) and not world.is_draining(node)
    ]
    if silent:
        yield Finding(
            "nodes",
            False,
            f"{', '.join(silent)}: no sign of life; check node and agent (`gpugrid nodes`), or `gpugrid forget` it if it left for good.",
        )
    elif world.nodes:
        yield Finding("nodes", True, f"{len(world.nodes)} nodes report or are drained.")
    if sizes["jobs"] and not sizes["decisions"]:
        yield Finding("decisions", False, "Jobs were let in and nothing was ever decided: is an allocator running?")
    undecided = [view for view in world.jobs.values() if view.status is None]
    if undecided and sizes["decisions"]:
        yield Finding(
            "decisions",
            False,
            f"{len(undecided)} accepted jobs are in no decision yet; if this lasts, look at the allocator's log.",
        )
    if sizes["dead-letters"]:
        yield Finding(
            "dead-letters",
            False,
            f"{sizes['dead-letters']} records were refused or unreadable: `gpugrid dead-letters` has the reasons.",
        )
    if world.unreadable:
        yield Finding(
            "records", False, f"{world.unreadable} records of the state topics can't be read: who else writes there?"
        )


def findings_table(found: list[Finding]) -> Table:
    """One line per finding."""
    table = plain_table("", "CHECK", "FINDING")
    for one in found:
        mark = (
            Text("ok", style="green")
            if one.ok
            else Text("??" if is_advice(one) else "NO", style="yellow" if is_advice(one) else "red")
        )
        table.add_row(mark, one.name, one.sentence)
    return table


def is_advice(finding: Finding) -> bool:
    """Whether the stack works all the same."""
    return finding.name in (*ADVICE, "restarts", "dead-letters")


async def _sizes(session: Session) -> dict[str, int]:
    from schemas.topics import TOPICS

    return {size.topic: size.offsets for size in await topic_sizes(session.bus(), [topic.name for topic in TOPICS])}


def _existing(folder: Path) -> Path:
    """The folder or its nearest parent that exists: asking must create nothing."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
