"""Why a job waits: the public list of reason codes, each with a stable name and one sentence.

Names are part of the job-status contract and never change meaning; new ones are added at the end. The planner sets
the codes that depend on the grid, the caller those that don't (quota, memory, forecast) by handing them in as a
refusal. `plan.v1` shows the names.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Reason codes. 0 means the job starts at step 0 (or isn't waiting)."""

    NONE = 0
    WAITING_FOR_GPUS = 1
    FRAGMENTED = 2
    APPLICATION_RETURN = 3
    BEHIND_PRIORITY = 4
    PLANNED_LATER = 5
    NOT_BEFORE = 6
    SIZE_EXCEEDS_POOL = 7
    MEMORY_EXCEEDS_GPU = 8
    NODE_DEGRADED = 9
    NO_CAPACITY = 10
    CLUSTER_UNKNOWN = 11
    POOL_UNKNOWN = 12
    AWAITING_FORECAST = 13
    QUOTA_EXCEEDED = 14
    RESERVED = 15
    BEYOND_WINDOW = 16
    DEPENDENCY = 17
    HELD_BY_OPERATOR = 18
    REQUEUE_BACKOFF = 19
    RUNNING_LIMIT = 20
    QUEUE_LIMIT = 21
    TAKES_A_PLACE = 22
    SIZE_EXCEEDS_CARD = 23
    PROMISED = 24
    WAITS_FOR_BETTER_POOL = 25
    TO_BE_CUT = 26
    CUT_FOR_ANOTHER_POOL = 27
    CUT_UNDER_WAY = 28

    @property
    def public_name(self) -> str:
        """The stable name in events and documents, for example `waiting_for_gpus`."""
        return self.name.lower()

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        return SENTENCES[self]


SENTENCES: dict[Reason, str] = {
    Reason.NONE: "The job isn't waiting.",
    Reason.WAITING_FOR_GPUS: "Fewer GPUs are free now than the smallest size this job offers.",
    Reason.FRAGMENTED: "Enough GPUs are free, but no free block has the right shape inside a node or of whole nodes.",
    Reason.APPLICATION_RETURN: "A fitting block is free now, but a real-time application needs it back too soon.",
    Reason.BEHIND_PRIORITY: "Jobs of higher value use the window's GPUs; this job has no planned start yet.",
    Reason.PLANNED_LATER: "The job has a planned start; starting it now would delay work of higher value.",
    Reason.NOT_BEFORE: "The job may not start before a later step.",
    Reason.SIZE_EXCEEDS_POOL: "This pool's nodes form no block of any size the job offers, even if all are whole and empty.",
    Reason.MEMORY_EXCEEDS_GPU: "The job needs more memory per GPU than this pool's GPUs have.",
    Reason.NODE_DEGRADED: "What would fit is on suspect, silent, draining or lost nodes, or on nodes with broken or quarantined GPUs.",
    Reason.NO_CAPACITY: "The pool has no usable GPU at all.",
    Reason.CLUSTER_UNKNOWN: "No such cluster is configured.",
    Reason.POOL_UNKNOWN: "The cluster has no such pool.",
    Reason.AWAITING_FORECAST: "The duration forecast hasn't arrived yet; it is waited for briefly.",
    Reason.QUOTA_EXCEEDED: "Its team, user or queue already holds as many GPUs as the rules allow.",
    Reason.RESERVED: "A fitting block is free now, but an operator reserved it.",
    Reason.TO_BE_CUT: "A fitting block is free now, but an operator ordered its cards to be cut anew; they get nothing until then.",
    Reason.CUT_FOR_ANOTHER_POOL: "What would fit is on cards that are cut for another pool at present.",
    Reason.CUT_UNDER_WAY: "It is to start on cards that are being cut for this pool; nothing can start on them until they are.",
    Reason.BEYOND_WINDOW: "The job may only start after the end of the planning window.",
    Reason.DEPENDENCY: "The job waits for another job to end.",
    Reason.HELD_BY_OPERATOR: "An operator holds the job.",
    Reason.REQUEUE_BACKOFF: "The job failed and waits before its next attempt.",
    Reason.RUNNING_LIMIT: "Its team, user or queue already runs as many jobs as the rules allow.",
    Reason.TAKES_A_PLACE: "Running jobs of preemptible queues save their work and stop for it; their block is held for it.",
    Reason.SIZE_EXCEEDS_CARD: "Every size the job offers is more slots than one card of this pool has; a job's slots lie on one card.",
    Reason.PROMISED: "A fitting block is free now, but a job that comes first (kept start, overdue, guaranteed) is to have it too soon.",
    Reason.WAITS_FOR_BETTER_POOL: "A block is free in another pool it accepts, but it does better where it is planned.",
    Reason.QUEUE_LIMIT: "Its team, user or queue has more jobs waiting than the rules let into planning.",
}


def reason_named(public_name: str) -> Reason:
    """The code of a public name; KeyError for an unknown one."""
    return Reason[public_name.upper()]
