"""The rules: a table, one predicate and one reason code each. Owns what may be let in; knows nothing of earlier events.

A rule answers None (fine) or what is wrong: the field in the event's own words, and a sentence that says what to do. Types
and ranges of single fields are the structs' business (`schemas/jobs.py`); here is what needs two fields or the catalog.
`validate` returns every refusal in the table's order; the first one is the one that is published.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.codec import encode_payload
from schemas.jobs import JobSpec, RestartMode
from services.intake.core.case import Case
from services.intake.core.refusals import Reason, Refusal
from services.intake.core.route import cluster_name, forms_block, named_pools
from services.intake.core.speeds import names_model, told_speed

SPEC_BYTES_MAX = 131_072
"""A decision carries the events it covers and must stay below 768 KiB; one job may not eat more than a sixth of that."""
CHECKPOINT_WAIT_S_MAX = 3_600.0
"""A drain or a time limit waits that long for a job that doesn't answer; longer would block the node, not save work."""

Wrong = tuple[str, str]
"""(field, sentence)."""


def identifiers(case: Case) -> Wrong | None:
    # `$` in the schema's pattern lets one trailing newline pass in Python and other engines.
    named: list[tuple[str, str | None]] = [(case.id_field, case.id)]
    if case.spec is not None:
        spec = case.spec
        named += [("spec.team", spec.team), ("spec.user", spec.user), ("spec.queue", spec.queue)]
        named += [("spec.template", spec.template)]
    for field, text in named:
        if text is not None and "\n" in text:
            return field, f"{field} ends with a line break; send it without"
    return None


def clock_skew(case: Case) -> Wrong | None:
    limit_s = case.catalog.limits.clock_skew_s_max
    for field, stamp_ms in case.stamps:
        ahead_s = (stamp_ms - case.now_ms) / 1000
        if ahead_s > limit_s:
            advice = "check the sender's clock and that the time is in Unix milliseconds"
            return field, f"{field} is {ahead_s:.0f} s in the future, at most {limit_s:.0f} s are accepted; {advice}"
    return None


def unknown_cluster(case: Case) -> Wrong | None:
    if case.spec is None or case.cluster is not None:
        return None
    known = ", ".join(case.catalog.clusters)
    return "spec.cluster", f"spec.cluster {case.spec.cluster!r} does not exist; use one of {known}, or leave it out"


def unknown_pool(case: Case) -> Wrong | None:
    if case.spec is None or case.cluster is None:
        return None
    field = "spec.pools" if case.job else "spec.pool"
    for name in named_pools(case.spec):
        if name not in case.cluster.pools:
            known = ", ".join(case.cluster.pools)
            cluster = cluster_name(case.spec, case.catalog)
            return field, f"{field} names {name!r}, cluster {cluster} has {known}; use these, or leave it out for any"
    return None


def unknown_gpu_model(case: Case) -> Wrong | None:
    if case.job is None or case.cluster is None:
        return None
    models = [pool.gpu_model for pool in case.cluster.pools.values()]
    for name in case.job.gpu_models:
        if not any(names_model(name, model) for model in models):
            known = ", ".join(dict.fromkeys(models))
            field = "spec.gpu_models"
            return field, f"{field} names {name!r}, the cluster's GPUs are {known}; use these, or leave it out for any"
    return None


def speed_unusable(case: Case) -> Wrong | None:
    job, cluster, field = case.job, case.cluster, "spec.speeds"
    if job is None or cluster is None or not job.speeds:
        return None
    for name in job.speeds:
        if name not in cluster.pools and not any(names_model(name, pool.gpu_model) for pool in cluster.pools.values()):
            return field, f"{field} has {name!r}, which is no pool or GPU model of the cluster; leave it out"
    for name, pool in case.pools:
        if told_speed(job, name, pool) is None:
            return field, f"{field} has nothing for pool {name} ({pool.gpu_model}), which it accepts; add it"
    return None


def unknown_team(case: Case) -> Wrong | None:
    if case.spec is None or not case.catalog.teams or case.spec.team in case.catalog.teams:
        return None
    return "spec.team", f"spec.team {case.spec.team!r} may not submit here; ask the operator to add it to the catalog"


def size_repeated(case: Case) -> Wrong | None:
    if case.job is None or len(set(case.job.sizes)) == len(case.job.sizes):
        return None
    return "spec.sizes", f"spec.sizes {case.job.sizes} offers a size twice; name each once"


def size_not_power_of_two(case: Case) -> Wrong | None:
    for gpus in case.job.sizes if case.job else ():
        if gpus & (gpus - 1):
            lower = 1 << (gpus.bit_length() - 1)
            return "spec.sizes", f"spec.sizes has {gpus}, which is not a power of two; offer {lower} or {2 * lower}"
    return None


def requested_size_not_offered(case: Case) -> Wrong | None:
    job = case.job
    if job is None or job.requested_gpus is None or job.requested_gpus in job.sizes:
        return None
    return (
        "spec.requested_gpus",
        f"spec.requested_gpus {job.requested_gpus} is not among spec.sizes {job.sizes}; add it there or leave it out",
    )


def size_exceeds_pool(case: Case) -> Wrong | None:
    job, pools = case.job, case.pools
    if job is None or not pools or any(forms_block(pool, gpus) for _, pool in pools for gpus in job.sizes):
        return None
    built = ", ".join(
        f"{name}: {pool.gpus} GPUs in nodes of {pool.node_gpus}"
        if pool.slots is None
        else f"{name}: slots, {pool.slots.per_card} on a card, and a job's slots lie on one card"
        for name, pool in pools
    )
    return (
        "spec.sizes",
        f"spec.sizes {job.sizes}: no block of any of these can be formed ({built}); offer a smaller size",
    )


def memory_exceeds_gpu(case: Case) -> Wrong | None:
    job, spec = case.job, case.spec
    if spec is None:
        return None
    pools = [pool for _, pool in case.pools if job is None or any(forms_block(pool, gpus) for gpus in job.sizes)]
    if not pools or any(spec.memory_mib <= pool.memory_mib for pool in pools):
        return None
    most = max(pool.memory_mib for pool in pools)
    return (
        "spec.memory_mib",
        f"spec.memory_mib {spec.memory_mib} per GPU, the fitting pools have at most {most}; ask for less",
    )


def time_limit_too_long(case: Case) -> Wrong | None:
    limit_s = case.time_limit_s if case.job is None else case.job.time_limit_s
    most_s = case.catalog.limits.time_limit_s_max
    if limit_s is None or limit_s <= most_s:
        return None
    field = "time_limit_s" if case.job is None else "spec.time_limit_s"
    return field, f"{field} {limit_s:.0f} is above the {most_s:.0f} s allowed here; set a shorter one"


def restart_contradiction(case: Case) -> Wrong | None:
    job = case.job
    if job is None:
        return None
    mode, attempts = job.restart.mode, job.restart.attempts_max
    field = "spec.restart.attempts_max"
    if mode is RestartMode.NEVER and attempts > 1:
        return (
            field,
            f"{field} is {attempts}, but spec.restart.mode is never; set the mode to on_failure or attempts to 1",
        )
    if mode is not RestartMode.NEVER and attempts == 1:
        return field, f"{field} 1 counts the first start, so mode {mode.value} never restarts; set it to 2 or more"
    return None


def checkpoint_wait_too_long(case: Case) -> Wrong | None:
    if case.job is None or case.job.checkpoint.wait_s <= CHECKPOINT_WAIT_S_MAX:
        return None
    field = "spec.checkpoint.wait_s"
    return field, f"{field} {case.job.checkpoint.wait_s:.0f} is above {CHECKPOINT_WAIT_S_MAX:.0f} s; set a shorter one"


def command_or_template(case: Case) -> Wrong | None:
    spec = case.spec
    if spec is None or (spec.command is None) != (spec.template is None):
        return None
    if spec.command is None:
        return "spec.command", "neither spec.command nor spec.template says what runs; set exactly one"
    return "spec.template", "spec.command and spec.template are both set; set exactly one"


def command_unusable(case: Case) -> Wrong | None:
    spec = case.spec
    if spec is None:
        return None
    if spec.command is not None:
        if not spec.command[0].strip():
            return "spec.command", "spec.command begins with an empty word; it must name a program"
        if any("\0" in word for word in spec.command):
            return "spec.command", "spec.command has a NUL character; remove it"
    if isinstance(spec, JobSpec) and spec.working_directory is not None and "\0" in spec.working_directory:
        return "spec.working_directory", "spec.working_directory has a NUL character; remove it"
    return None


def environment_unusable(case: Case) -> Wrong | None:
    if case.spec is None:
        return None
    field, environment = "spec.environment", case.spec.environment
    count_max = case.catalog.limits.environment_count_max
    if len(environment) > count_max:
        return field, f"{field} has {len(environment)} variables, at most {count_max} are allowed; use a file instead"
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return field, f"{field} has {name!r}, which no process can be given (empty, '=' or NUL); rename it"
    return None


def spec_too_large(case: Case) -> Wrong | None:
    if case.spec is None:
        return None
    size = len(encode_payload(case.spec))
    if size <= SPEC_BYTES_MAX:
        return None
    return "spec", f"spec has {size} bytes, at most {SPEC_BYTES_MAX} are accepted; move scripts and data into files"


def floor_exceeds_peak(case: Case) -> Wrong | None:
    app = case.application
    if app is None or app.floor_gpus <= app.peak_gpus:
        return None
    return (
        "spec.floor_gpus",
        f"spec.floor_gpus {app.floor_gpus} is above spec.peak_gpus {app.peak_gpus}; swap or lower it",
    )


def peak_exceeds_pool(case: Case) -> Wrong | None:
    app = case.application
    pools = [pool for _, pool in case.pools if app is not None and app.memory_mib <= pool.memory_mib]
    if app is None or not pools or any(app.peak_gpus <= pool.gpus for pool in pools):
        return None
    most = max(pool.gpus for pool in pools)
    return "spec.peak_gpus", f"spec.peak_gpus {app.peak_gpus} is more than the {most} GPUs of the largest fitting pool"


def switch_max_absurd(case: Case) -> Wrong | None:
    app = case.application
    if app is None or app.switch_max <= 2 * app.peak_gpus:
        return None
    most = 2 * app.peak_gpus
    return (
        "spec.switch_max",
        f"spec.switch_max {app.switch_max} is more than peak lost plus peak gained ({most}); lower it",
    )


Rule = Callable[[Case], Wrong | None]
RULES: tuple[tuple[Reason, Rule], ...] = (
    (Reason.INVALID_FIELD, identifiers),
    (Reason.CLOCK_SKEW, clock_skew),
    (Reason.UNKNOWN_CLUSTER, unknown_cluster),
    (Reason.UNKNOWN_POOL, unknown_pool),
    (Reason.UNKNOWN_GPU_MODEL, unknown_gpu_model),
    (Reason.SPEED_UNUSABLE, speed_unusable),
    (Reason.UNKNOWN_TEAM, unknown_team),
    (Reason.SIZE_REPEATED, size_repeated),
    (Reason.SIZE_NOT_POWER_OF_TWO, size_not_power_of_two),
    (Reason.REQUESTED_SIZE_NOT_OFFERED, requested_size_not_offered),
    (Reason.SIZE_EXCEEDS_POOL, size_exceeds_pool),
    (Reason.MEMORY_EXCEEDS_GPU, memory_exceeds_gpu),
    (Reason.TIME_LIMIT_TOO_LONG, time_limit_too_long),
    (Reason.RESTART_CONTRADICTION, restart_contradiction),
    (Reason.CHECKPOINT_WAIT_TOO_LONG, checkpoint_wait_too_long),
    (Reason.COMMAND_OR_TEMPLATE, command_or_template),
    (Reason.COMMAND_UNUSABLE, command_unusable),
    (Reason.ENVIRONMENT_UNUSABLE, environment_unusable),
    (Reason.SPEC_TOO_LARGE, spec_too_large),
    (Reason.FLOOR_EXCEEDS_PEAK, floor_exceeds_peak),
    (Reason.PEAK_EXCEEDS_POOL, peak_exceeds_pool),
    (Reason.SWITCH_MAX_ABSURD, switch_max_absurd),
)
"""In the order in which they are reported."""


def validate(case: Case) -> list[Refusal]:
    """Every rule the case breaks, in the table's order; empty = let in. Then at least one pool can hold it."""
    refusals = []
    for reason, rule in RULES:
        wrong = rule(case)
        if wrong is not None:
            refusals.append(Refusal(reason, *wrong))
    return refusals
