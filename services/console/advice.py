"""What would help, per public code: one list for the planner's reasons, one for intake's refusals. Data, no logic.

A test asserts that every code of `services.allocator.core.reasons` and `services.intake.core.refusals` is here.
"""

from __future__ import annotations

from services.allocator.core.reasons import Reason
from services.intake.core.refusals import Reason as Refused

AGING_HELP = (
    "Waiting raises it by itself (aging), up to a limit; that it starts in the end is certain only where the rules have"
    " `aging.overdue_s` (`gpugrid policy show`)."
)
"""For whoever is behind others, as long as the rules aren't known; `place_in_order` says what they come to."""

REASON_HELP: dict[Reason, tuple[str, ...]] = {
    Reason.NONE: (),
    Reason.WAITING_FOR_GPUS: (
        "Offer a smaller size as well (`--gpus 2,4,8`): the first that fits is used.",
        "See who ends next: `gpugrid grid`.",
    ),
    Reason.FRAGMENTED: (
        "Offer smaller sizes: the free GPUs are there, only not side by side.",
        "Wait for the planned start: the planner packs new work so that whole blocks come back.",
    ),
    Reason.APPLICATION_RETURN: (
        "Offer sizes that finish sooner, or have the job checkpoint: short jobs fit into the valley before the peak.",
        "If the forecast of the application is too careful, lower its headroom or quantile.",
    ),
    Reason.BEHIND_PRIORITY: (
        "Raise its priority if it is worth more (`gpugrid change JOB --priority N`).",
        AGING_HELP,
    ),
    Reason.PLANNED_LATER: (
        "Nothing has to be done: it has a place in the plan.",
        "A higher priority or a smaller size could bring it forward.",
    ),
    Reason.NOT_BEFORE: ("Nothing has to be done: it may start only later.",),
    Reason.SIZE_EXCEEDS_POOL: (
        "Cancel it and submit it with a size the pool can form, or name another pool.",
        "A block lies inside one node, or is whole nodes side by side that add up to it: `gpugrid nodes` shows the nodes.",
    ),
    Reason.MEMORY_EXCEEDS_GPU: (
        "Ask for less memory per GPU, use more GPUs with less memory each, or name a pool with larger GPUs.",
    ),
    Reason.SIZE_EXCEEDS_CARD: (
        "Offer at most as many slots as one card of the pool has, or name the pool of whole cards.",
    ),
    Reason.NODE_DEGRADED: (
        "Look at `gpugrid nodes`: bring the suspect or lost node back, or undrain it (`gpugrid undrain NODE`).",
    ),
    Reason.NO_CAPACITY: ("Look at `gpugrid nodes` and `gpugrid doctor`: no node of the pool reports usable GPUs.",),
    Reason.CLUSTER_UNKNOWN: ("Cancel it and submit it to a cluster of the catalog, or leave the cluster out.",),
    Reason.POOL_UNKNOWN: ("Cancel it and submit it with a pool of the catalog, or leave the pools out.",),
    Reason.AWAITING_FORECAST: (
        "Nothing has to be done: after a short wait the job goes on with a prior.",
        "If it stays so, the allocator lags: `gpugrid doctor`.",
    ),
    Reason.QUOTA_EXCEEDED: (
        "Wait until a job of the group ends, cancel one, or ask for a larger quota (`gpugrid policy show`).",
    ),
    Reason.RUNNING_LIMIT: ("Wait until a job of the group ends, or cancel one (`gpugrid policy show`).",),
    Reason.TAKES_A_PLACE: ("Nothing has to be done: it starts when the last of them has stopped.",),
    Reason.PROMISED: (
        "Offer sizes that finish sooner: what ends before that job's planned start may run there.",
        "See the planned starts: `gpugrid plan`.",
    ),
    Reason.WAITS_FOR_BETTER_POOL: (
        "Nothing has to be done: it has a place in the plan, and both pools are looked at again with every decision.",
        "To start in a certain pool, submit it with that pool alone (`--pool`).",
    ),
    Reason.QUEUE_LIMIT: ("Nothing has to be done: it is planned when earlier ones have started.",),
    Reason.RESERVED: ("Wait for the reservation to end, or ask the operator to release it (`gpugrid reservations`).",),
    Reason.TO_BE_CUT: (
        "Nothing has to be done if the cards come back to its pool; `gpugrid nodes` shows the order, and when it is over.",
        "Otherwise offer sizes that fit beside them, or have the cards left as they are (`gpugrid partition`).",
    ),
    Reason.CUT_UNDER_WAY: (
        "Wait: its start is planned for when the cards are empty and cut (`gpugrid nodes` shows the order).",
        "What runs on these cards may be ended or checkpointed sooner by its owner.",
    ),
    Reason.CUT_FOR_ANOTHER_POOL: (
        "Offer sizes that fit beside them, or name the pool that they are cut for: `gpugrid nodes` shows how cards are cut.",
        "Have cards cut for its pool again: `gpugrid partition NODE --cards … --pool POOL`.",
    ),
    Reason.BEYOND_WINDOW: ("Nothing has to be done: the window moves on and the job comes into it.",),
    Reason.DEPENDENCY: ("See where the other job is: `gpugrid why OTHER-JOB`.",),
    Reason.HELD_BY_OPERATOR: ("Ask the operator to let it go.",),
    Reason.REQUEUE_BACKOFF: (
        "Read the output of the failed attempt; the pause grows with every failure.",
        "Cancel it if it can't succeed (`gpugrid cancel JOB`).",
    ),
}
"""What a person can do about each reason; empty only where the job isn't waiting."""

_READABLE = (
    "Compare the record with the JSON Schema and the examples of its type (docs/publishing.md).",
    "The dead letter has the original bytes: `gpugrid dead-letters --json`.",
)
_SIZES = ("Offer sizes that are powers of two and that the pool can form (`gpugrid nodes` shows its nodes).",)
_CATALOG = ("Use a name of the catalog, or have it added there (GPUGRID_CATALOG) and restart the services.",)

REFUSAL_HELP: dict[Refused, tuple[str, ...]] = {
    Refused.NO_VALUE: ("To withdraw a job send job.cancelled.v1 (`gpugrid cancel JOB`), never an empty record.",),
    Refused.MALFORMED_HEADER: _READABLE,
    Refused.MISSING_HEADER: _READABLE,
    Refused.UNSUPPORTED_VERSION: ("Set ce_specversion to 1.0.",),
    Refused.UNKNOWN_TYPE: _READABLE,
    Refused.MALFORMED_TIME: ("Write the time like 2026-01-31T12:00:00.000Z.",),
    Refused.MALFORMED_JSON: _READABLE,
    Refused.INVALID_FIELD: _READABLE,
    Refused.WRONG_TOPIC: ("Publish it on the topic its type belongs to (`gpugrid topics`).",),
    Refused.KEY_NOT_ID: ("Set the record key to the job or application id.",),
    Refused.CONFLICTING_CONTENT: (
        "Choose a new id for a different job; to change priority or limit use `gpugrid change JOB`.",
    ),
    Refused.ID_TAKEN: ("Choose another id.",),
    Refused.CLOCK_SKEW: ("Set the clock of the submitting machine (NTP) and submit again.",),
    Refused.UNKNOWN_CLUSTER: _CATALOG,
    Refused.UNKNOWN_POOL: _CATALOG,
    Refused.UNKNOWN_GPU_MODEL: _CATALOG,
    Refused.SPEED_UNUSABLE: (
        "Give one --speed per acceptable pool or GPU model, or none: then measured ratios count.",
    ),
    Refused.UNKNOWN_TEAM: _CATALOG,
    Refused.SIZE_REPEATED: ("Name every size once.",),
    Refused.SIZE_NOT_POWER_OF_TWO: _SIZES,
    Refused.REQUESTED_SIZE_NOT_OFFERED: ("Add requested_gpus to sizes, or leave it out.",),
    Refused.SIZE_EXCEEDS_POOL: _SIZES,
    Refused.MEMORY_EXCEEDS_GPU: ("Ask for less memory per GPU, or name a pool with larger GPUs.",),
    Refused.TIME_LIMIT_TOO_LONG: ("Shorten the limit; long work goes on over several attempts with checkpoints.",),
    Refused.RESTART_CONTRADICTION: (
        "With mode never give one attempt; with more attempts choose on_failure or always.",
    ),
    Refused.CHECKPOINT_WAIT_TOO_LONG: ("Shorten checkpoint.wait_s; save at intervals instead.",),
    Refused.COMMAND_OR_TEMPLATE: ("Give exactly one of command and template.",),
    Refused.COMMAND_UNUSABLE: ("Check the command and the working directory for empty parts and NUL characters.",),
    Refused.ENVIRONMENT_UNUSABLE: ("Use names without = and NUL, and fewer or shorter values.",),
    Refused.SPEC_TOO_LARGE: ("Put large inputs into a file the job reads, not into its specification.",),
    Refused.FLOOR_EXCEEDS_PEAK: ("Set floor_gpus to at most peak_gpus.",),
    Refused.PEAK_EXCEEDS_POOL: ("Lower peak_gpus, or name a larger pool.",),
    Refused.SWITCH_MAX_ABSURD: ("Set switch_max to at most twice the peak.",),
    Refused.UNKNOWN_ID: ("Check the id (`gpugrid jobs --all`); submit first, then change or cancel.",),
    Refused.NOT_A_JOB: ("Register the application again with the new numbers.",),
    Refused.JOB_CANCELLED: ("Submit it again under a new id.",),
    Refused.NOTHING_TO_CHANGE: ("Name a new priority or time limit.",),
}
"""What a person can do about each refusal of intake."""

GENERIC_REFUSAL_HELP = ("Correct what the reason names and submit again under a new id.",)


def refusal_help(code: str) -> tuple[str, ...]:
    """Advice for a refusal; the generic one for a code this console does not know."""
    reason = _refused(code)
    return REFUSAL_HELP[reason] if reason is not None else GENERIC_REFUSAL_HELP


def code_sentence(code: str | None) -> str | None:
    """The owner's sentence for a refusal code, or None if nobody owns it."""
    reason = _refused(code)
    return reason.sentence if reason is not None else None


def _refused(code: str | None) -> Refused | None:
    try:
        return Refused(code)
    except ValueError:
        return None
