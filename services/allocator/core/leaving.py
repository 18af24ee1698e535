"""Applications that have to leave draining nodes: what they hold elsewhere grows before the deadline takes what they hold there.

Owns: how many GPUs an application asks for while its nodes drain. Nobody else can use what it holds there, so it keeps all of it until
the deadline; elsewhere it grows as late as its `switch_max` per step allows, and one step earlier, so that the last new GPU is ready when
the last old one goes. GPUs on a draining node are on their way out and don't count against the peak. Refuses: what can't be had; the
deadline wins. Read next: `pose.py` (who asks), `commit.py`, `verify_commit.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from services.allocator.core.config import Policy
from services.allocator.core.gpu_states import GpuState
from services.allocator.core.layout import Layout
from services.allocator.core.state import App

if TYPE_CHECKING:  # the problem is posed with what is asked for here
    from services.allocator.core.pose import Posed


def demand_while_leaving(
    app: App, wanted: Sequence[int], layout: Layout, policy: Policy, now_ms: int
) -> tuple[int, ...]:
    """`wanted` per step, and on top of it, in the last steps before a drain's deadline, what is to be held elsewhere by then.

    After the deadline it falls by `switch_max` a step: the planner lowers the steps before a steeper fall, since it takes every loss for
    one by choice. None of that is committed: once the deadline is here, `wanted` is all that is asked for.
    Without a forecast it asks for what it holds; what it gained meanwhile must not count as that, so only the floor is made sure of.
    """
    leaving = _leaving(app, layout, policy, now_ms)
    if not leaving or app.spec.switch_max <= 0:
        return tuple(wanted)
    floor = min(app.spec.floor_gpus, app.spec.peak_gpus)
    found = list(wanted)
    for step in range(min(len(found), max(leaving))):
        kept = sum(gpus for start, gpus in leaving.items() if start > step)
        needed = 0
        for start in (start for start in leaving if start > step):
            after = sum(gpus for later, gpus in leaving.items() if later > start)
            base = floor if app.forecast is None else wanted[min(start, len(wanted) - 1)]
            needed = max(needed, base - after - app.spec.switch_max * (start - 1 - step))
        if needed > 0:
            found[step] = max(found[step], kept + needed)
    for step in range(1, len(found)):
        if step >= min(leaving):
            found[step] = max(found[step], found[step - 1] - app.spec.switch_max)
    return tuple(found)


def while_leaving(
    posed: Posed, row: int, wanted: list[int], held: list[int], taken: set[int], idle: NDArray[np.bool_], used: int
) -> list[int]:
    """What application `row` holds now, if the plan gives it less than it asks for while it leaves: the planner takes the deadline's loss
    for one by choice and begins to shrink before it. It keeps what it has on draining nodes, and grows on idle GPUs within the cap."""
    app, asked = posed.apps[row], int(posed.problem.app_demand[row, 0])
    if len(wanted) >= asked:
        return wanted
    going = _draining(posed.layout)
    kept = [
        gpu for gpu in held if gpu in going and gpu not in taken and posed.problem.gpu_state[gpu] != GpuState.UNUSABLE
    ]
    if not kept:
        return wanted
    found = set(wanted)
    found.update([gpu for gpu in kept if gpu not in found][: asked - len(found)])
    switched = len((found ^ set(held)) - (taken - found))
    room = min(asked - len(found), app.spec.switch_max - used - switched)
    gained = [gpu for gpu in np.flatnonzero(idle)[::-1].tolist() if gpu not in found][: max(0, room)]
    idle[gained] = False
    return sorted(found.union(gained))


def within_peak(app: App, layout: Layout, wanted: list[int], held: list[int]) -> list[int]:
    """`wanted` without gains that would bring what is to stay above the peak: where something else takes what was to be kept."""
    if len(wanted) <= app.spec.peak_gpus:
        return wanted
    going = _draining(layout)
    beyond = len([gpu for gpu in wanted if gpu not in going]) - app.spec.peak_gpus
    gained = [gpu for gpu in wanted if gpu not in held]
    if beyond <= 0 or not gained or not going:
        return wanted
    dropped = set(gained[-beyond:])
    return [gpu for gpu in wanted if gpu not in dropped]


def _leaving(app: App, layout: Layout, policy: Policy, now_ms: int) -> dict[int, int]:
    """GPUs on draining nodes by the step in which they are taken; those that go now are no longer kept by anything."""
    nodes, found = {node.node: node for node in layout.nodes}, dict[int, int]()
    for part in app.parts:
        node = nodes.get(part.node)
        if node is None or not node.draining:
            continue
        start = (node.drain_deadline_ms - now_ms) // policy.step_ms
        if start > 0:
            there = len([gpu for gpu in part.gpus if gpu not in node.absent])
            found[start] = found.get(start, 0) + there
    return found


def _draining(layout: Layout) -> set[int]:
    return {
        number
        for node in layout.nodes
        if node.draining
        for number in range(layout.first[node.node], layout.first[node.node] + node.size)
    }
