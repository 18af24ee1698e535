"""What operators order, as events on `commands`. The node's own record says which cluster and partition it belongs to."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from schemas.commands import (
    ChangeRules,
    CheckpointJob,
    DrainNode,
    ForgetNode,
    ReleaseBlock,
    RepartitionCards,
    ReserveBlock,
    UndrainNode,
)
from schemas.executions import JobCheckpointed, JobCompleted, JobFailed, JobStopped
from schemas.jobs import CheckpointMode
from schemas.messages import message
from schemas.nodes import Health, HealthAction
from services.console import queries, submission
from services.console.errors import ConsoleError
from services.console.facts import World, readable
from services.console.publishing import new_traceparent
from services.console.read import watch_topic
from services.console.sentences import gpu_ranges
from services.console.session import Session
from services.console.similar import similar_names, suggestion
from services.telemetry.core.ailments import key_of

if TYPE_CHECKING:
    from services.console.policy_orders import Standing


async def drain_node(session: Session, node: str, *, deadline_s: float, cause: str) -> dict[str, Any]:
    """Order a drain. ConsoleError for a node nobody has heard of."""
    cluster, partition = home(await queries.load_world(session), node)
    now_ms = session.clock().now_ms()
    event = DrainNode(node=node, cluster=cluster, ordered_ms=now_ms, deadline_s=deadline_s, cause=cause)
    return await publish_order(session, event, node, "drain", now_ms, partition)


async def undrain_node(session: Session, node: str) -> dict[str, Any]:
    """Order the end of a drain, and tell what it changes. ConsoleError for a node nobody has heard of."""
    world = await queries.load_world(session)
    cluster, partition = home(world, node)
    now_ms = session.clock().now_ms()
    event = UndrainNode(node=node, cluster=cluster, ordered_ms=now_ms)
    sent = await publish_order(session, event, node, "undrain", now_ms, partition)
    meant = [state for state in world.nodes.values() if node in (state.node, state.machine)]
    kept_away = [
        {"node": state.node, "gpu": found.gpu, "error": key_of(found)}
        for state in meant
        for found in state.findings
        if found.action is not HealthAction.COUNT and key_of(found)
    ]
    draining = any(world.is_draining(state) for state in meant)
    return {**sent, "was_draining": draining, "health": world.nodes[node].health.value, "clears": kept_away}


def undrain_text(sent: dict[str, Any]) -> str:
    """What an undrain changes, in a sentence or two."""
    node = sent["node"]
    if not sent["was_draining"] and not sent["clears"]:
        said = f"{node} was not draining and no error keeps work from its GPUs: nothing changes."
    else:
        said = f"{node} may be used again."
    if sent["clears"]:
        errors = ", ".join(f"{one['error']} on GPU {one['gpu']}" for one in sent["clears"])
        said += f" Cleared with its next sample, unless still there: {errors}."
    if sent["health"] in (Health.SUSPECT.value, Health.LOST.value):
        said += f" It is {sent['health']}: nothing is placed there before its agent is heard again."
    return said


async def partition_cards(
    session: Session, machine: str, *, cards: list[int], pool: str, deadline_s: float, cause: str
) -> dict[str, Any]:
    """Order that cards (none named: all) are cut for another pool. ConsoleError for a machine, pool or card that isn't there."""
    world = await queries.load_world(session)
    parts = {node.pool: node for node in world.nodes.values() if node.machine == machine}
    cluster, partition = home(world, machine)
    if not parts:
        raise ConsoleError(f"The cards of {machine} are not shared: set GPUGRID_SLOT_POOLS of its agent and executor.")
    if pool not in parts:
        raise ConsoleError(f"{machine} can't be cut for pool {pool}: it is set up for {', '.join(sorted(parts))}.")
    count = len(world.nodes[machine].gpus)
    chosen = sorted(set(cards)) or list(range(count))
    if chosen[-1] >= count:
        raise ConsoleError(f"{machine} has cards 0 to {count - 1}.")
    now_ms = session.clock().now_ms()
    event = RepartitionCards(
        request_id=f"partition-{machine}-{secrets.token_hex(4)}",
        cluster=cluster,
        node=machine,
        cards=chosen,
        pool=pool,
        ordered_ms=now_ms,
        deadline_s=deadline_s,
        cause=cause,
    )
    sent = await publish_order(session, event, machine, "partition", now_ms, partition)
    return {**sent, "request_id": event.request_id, "cards": chosen, "pool": pool}


async def reserve_block(
    session: Session, node: str, *, gpus: list[int], from_ms: int, until_ms: int, cause: str
) -> dict[str, Any]:
    """Order that GPUs (none named: the whole node) get nothing new in a window. ConsoleError for a node or GPU that isn't there."""
    world = await queries.load_world(session)
    cluster, partition = home(world, node)
    there = {gpu.index for gpu in world.nodes[node].gpus}
    if missing := sorted(set(gpus) - there):
        raise ConsoleError(f"{node} has no GPU {missing[0]}; it has {gpu_ranges(sorted(there))}.")
    now_ms = session.clock().now_ms()
    if until_ms <= now_ms:
        raise ConsoleError("That window is over already.")
    event = ReserveBlock(
        reservation_id=f"{node}-{secrets.token_hex(3)}",
        cluster=cluster,
        node=node,
        from_ms=from_ms,
        until_ms=until_ms,
        ordered_ms=now_ms,
        gpus=sorted(set(gpus)),
        cause=cause,
    )
    sent = await publish_order(session, event, node, "reserve", now_ms, partition)
    return {
        **sent,
        "reservation_id": event.reservation_id,
        "gpus": event.gpus,
        "from_ms": from_ms,
        "until_ms": until_ms,
    }


async def release_block(session: Session, standing: Standing, reservation_id: str) -> dict[str, Any]:
    """Order the end of a reservation. ConsoleError for one that isn't there."""
    known = standing.state.reservations
    forgotten = [one.node.node for one in standing.state.forgotten.values() if reservation_id in one.ended]
    if forgotten and reservation_id not in known:
        raise ConsoleError(f"{reservation_id} ended when {forgotten[0]} was forgotten.")
    if reservation_id not in known:
        hint = f"; there is {', '.join(sorted(known)[:5])}" if known else ""
        raise ConsoleError(f"No reservation is named {reservation_id}{hint}.")
    now_ms = session.clock().now_ms()
    event = ReleaseBlock(reservation_id=reservation_id, cluster=standing.cluster, ordered_ms=now_ms)
    return await publish_order(session, event, known[reservation_id].node, "release", now_ms, standing.partition)


async def checkpoint_job(session: Session, job_id: str) -> dict[str, Any]:
    """Order a checkpoint. ConsoleError for a job that doesn't run or never saves."""
    world = await queries.load_world(session)
    view = world.jobs.get(job_id)
    if view is None:
        raise queries.unknown_job(job_id, world)
    if view.job is not None and view.job.checkpoint.mode is CheckpointMode.NONE:
        raise ConsoleError(f"{job_id} can't save its work: it was submitted without a checkpoint mode.")
    placed = view.status.placed if view.status is not None else []
    if view.final or not placed or view.is_application:
        raise ConsoleError(f"{job_id} is {view.state}: only a running job can be asked for a checkpoint.")
    cluster, partition = home(world, placed[0].node)
    now_ms = session.clock().now_ms()
    event = CheckpointJob(job_id=job_id, cluster=cluster, ordered_ms=now_ms)
    wall_ms = session.clock().wall_ms()
    sent = await publish_order(session, event, job_id, "checkpoint", now_ms, partition)
    return {"id": sent["id"], "job_id": job_id, "trace_id": sent["trace_id"], "ordered_wall_ms": wall_ms}


async def checkpoint_answer(session: Session, job_id: str, after_wall_ms: int, wait_s: float) -> dict[str, Any]:
    """What the job saved, after the order; ConsoleError if nothing came in time, or it ended."""
    watched = watch_topic(session.bus(), "executions", wall_s=session.clock().wall_s, deadline_s=wait_s)
    async for record in watched:
        envelope = readable(record) if record.timestamp_ms >= after_wall_ms else None
        if envelope is None or getattr(envelope.event, "job_id", None) != job_id:
            continue
        match envelope.event:
            case JobCheckpointed(fraction=fraction, location=location):
                return {"fraction": fraction, "location": location}
            case JobCompleted() | JobFailed() | JobStopped():
                raise ConsoleError(f"{job_id} ended before it had saved ({envelope.type}).")
    raise ConsoleError(f"{job_id} did not say within {wait_s:.0f} s that it has saved.")


def home(world: World, node: str) -> tuple[str, int]:
    """Cluster and partition of a node: all cluster topics share the partition of a cluster. ConsoleError for one nobody has heard of."""
    state = world.nodes.get(node)
    if state is None:
        hint = similar_names(node, sorted(world.nodes))
        raise ConsoleError(f"No node is named {node}." + suggestion(hint, "gpugrid nodes"))
    return state.cluster, world.node_partition[node]


async def publish_order(
    session: Session,
    event: DrainNode
    | UndrainNode
    | ForgetNode
    | CheckpointJob
    | RepartitionCards
    | ReserveBlock
    | ReleaseBlock
    | ChangeRules,
    node: str,
    verb: str,
    now_ms: int,
    partition: int,
) -> dict[str, Any]:
    """`node`: the key: whom the order is about, be it a node, a job or a cluster."""
    traceparent = new_traceparent()
    order_id = f"{node}/{verb}/{now_ms}/{secrets.token_hex(4)}"
    await session.publish(
        [
            message(
                event,
                key=node,
                id=order_id,
                source=submission.SOURCE,
                time_ms=now_ms,
                traceparent=traceparent,
                partition=partition,
            )
        ]
    )
    return {"id": order_id, "node": node, "trace_id": submission.trace_id_of(traceparent), "traceparent": traceparent}
