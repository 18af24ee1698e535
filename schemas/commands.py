"""What operators order (`commands`). Imperative: a command may be refused loudly."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from schemas.base import DurationS, Event, GpuIndex, Identifier, ShortText, TimeMs
from schemas.rules import Rules


class DrainNode(Event, frozen=True, kw_only=True):
    """Start nothing new on a node; at the deadline checkpoint and stop what still runs."""

    node: Identifier
    cluster: Identifier
    ordered_ms: TimeMs
    deadline_s: DurationS = 86_400.0
    cause: ShortText = ""


class UndrainNode(Event, frozen=True, kw_only=True):
    """Let a drained node be used again."""

    node: Identifier
    cluster: Identifier
    ordered_ms: TimeMs


class ForgetNode(Event, frozen=True, kw_only=True):
    """A node is gone for good: it leaves the grid, and what ran there is queued again at once. Refused while it is heard, unless `force`.

    `incarnation`: the life of the node that is meant, as its state says; a later one is left alone.
    """

    node: Identifier
    cluster: Identifier
    ordered_ms: TimeMs
    incarnation: Annotated[int, Meta(ge=0)] = 0
    force: bool = False
    cause: ShortText = ""


class CheckpointJob(Event, frozen=True, kw_only=True):
    """Ask a running job to save its work now and go on."""

    job_id: Identifier
    cluster: Identifier
    ordered_ms: TimeMs


class ReserveBlock(Event, frozen=True, kw_only=True):
    """Keep GPUs of one node free of new work for a window. `gpus` local indices; empty = the whole node."""

    reservation_id: Identifier
    cluster: Identifier
    node: Identifier
    from_ms: TimeMs
    until_ms: TimeMs
    ordered_ms: TimeMs
    gpus: Annotated[list[GpuIndex], Meta(max_length=1024)] = []
    cause: ShortText = ""


class ReleaseBlock(Event, frozen=True, kw_only=True):
    """End a reservation early."""

    reservation_id: Identifier
    cluster: Identifier
    ordered_ms: TimeMs


class ChangeRules(Event, frozen=True, kw_only=True):
    """Replace the rules of a cluster as a whole. Only a version above the one in force is taken."""

    cluster: Identifier
    rules: Rules
    ordered_ms: TimeMs
    cause: ShortText = ""


class RepartitionCards(Event, frozen=True, kw_only=True):
    """Cut cards of a machine into the slots of another pool, once they are empty. They get nothing new from now on; at the deadline what
    still runs on them is checkpointed and stopped. A later order takes its cards from earlier ones.
    """

    request_id: Identifier
    cluster: Identifier
    node: Identifier
    cards: Annotated[list[GpuIndex], Meta(min_length=1, max_length=1024)]
    pool: Identifier
    ordered_ms: TimeMs
    deadline_s: DurationS = 86_400.0
    cause: ShortText = ""
