"""What operators order, as events on `commands`. The node's own record says which cluster and partition it belongs to."""

from __future__ import annotations

import secrets
from typing import Any

from schemas.commands import DrainNode, UndrainNode
from schemas.messages import message
from services.console import queries, submission
from services.console.errors import ConsoleError
from services.console.publishing import new_traceparent
from services.console.session import Session


async def drain_node(session: Session, node: str, *, deadline_s: float, cause: str) -> dict[str, Any]:
    """Order a drain. ConsoleError for a node nobody has heard of."""
    cluster, partition = await _home(session, node)
    now_ms = session.clock().now_ms()
    event = DrainNode(node=node, cluster=cluster, ordered_ms=now_ms, deadline_s=deadline_s, cause=cause)
    return await _order(session, event, node, "drain", now_ms, partition)


async def undrain_node(session: Session, node: str) -> dict[str, Any]:
    """Order the end of a drain. ConsoleError for a node nobody has heard of."""
    cluster, partition = await _home(session, node)
    now_ms = session.clock().now_ms()
    return await _order(
        session, UndrainNode(node=node, cluster=cluster, ordered_ms=now_ms), node, "undrain", now_ms, partition
    )


async def _home(session: Session, node: str) -> tuple[str, int]:
    """Cluster and partition of a node: all cluster topics share the partition of a cluster."""
    world = await queries.load_world(session)
    state = world.nodes.get(node)
    if state is None:
        hint = queries.similar_names(node, sorted(world.nodes))
        raise ConsoleError(f"No node is named {node}." + (f" Did you mean {' or '.join(hint)}?" if hint else ""))
    return state.cluster, world.node_partition[node]


async def _order(
    session: Session, event: DrainNode | UndrainNode, node: str, verb: str, now_ms: int, partition: int
) -> dict[str, Any]:
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
