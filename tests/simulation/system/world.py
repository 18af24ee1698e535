"""What a seed makes of the world outside: a small cluster, two hours of jobs and applications, and what people order meanwhile.

Owns: everything upstream and operators publish, as data with the domain moment at which it is due. Nothing here goes wrong
(that is `faults.py`); what upstream does wrong by itself (a stamp from the future, rubbish) is part of the world. Read next:
`world_rules.py`, `stack.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from schemas.base import Event
from schemas.catalog import Catalog, Cluster, Pool
from schemas.commands import CheckpointJob, DrainNode, ReleaseBlock, ReserveBlock, UndrainNode
from schemas.demand import DemandObserved
from schemas.jobs import (
    ApplicationRegistered,
    ApplicationSpec,
    CheckpointMode,
    CheckpointPolicy,
    JobCancelled,
    JobChanged,
    JobSpec,
    JobSubmitted,
    Kind,
    ProbeKind,
    Readiness,
    RestartMode,
    RestartPolicy,
)
from schemas.messages import message
from schemas.records import Message
from tests.simulation.system.world_mixed import MixedHardware
from tests.simulation.system.world_rules import Rulebook
from tests.simulation.system.world_slots import HALF, MACHINE, Sharing

START_MS = 1_800_000_000_000
HOURS = 2.0
SPAN_MS = round(HOURS * 3_600_000)
CLUSTER, POOL = "c0", "h100"
GPUS = 16
JOBS = 30
APPLICATIONS = 2
SHAPES = ((8, 2), (4, 4))
"""(GPUs per node, nodes): both make 16."""
SIZES = ((1,), (1, 2), (2,), (2, 4), (4,), (4, 8), (8,), (8, 16), (16,))
SIZE_WEIGHTS = (6, 5, 5, 4, 4, 3, 2, 1, 1)
SMALL_SIZES = ((1,), (1, 2), (2,))
"""Where applications stay for ever, nothing promises that larger blocks come free."""
APPLICATIONS_END_SHARE = 0.7
PARTITIONS = 2
"""Of every topic: the cluster has one of its own, the other one is nobody's."""
MINUTE_MS = 60_000
DEMAND_EVERY_MS = 10 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Publication:
    """One message, due at a domain moment."""

    due_ms: int
    message: Message


@dataclass(frozen=True, slots=True)
class World:
    """One seed's cluster and everything that is published from outside, in order of time."""

    seed: int
    catalog: Catalog
    partition: int
    nodes: tuple[str, ...]
    node_gpus: int
    publications: tuple[Publication, ...]
    sharing: Sharing | None = None
    """The machine `world_slots.MACHINE`, one of `nodes`, if its cards are shared."""
    old_nodes: dict[str, int] = field(default_factory=dict)
    """Those of `nodes` that belong to the second pool, with their GPUs (`world_mixed.py`)."""


def build_world(seed: int) -> World:
    """The same world for the same seed, in every process."""
    dice = Random(f"{seed}/world")
    node_gpus, node_count = dice.choice(SHAPES)
    partition = dice.randrange(PARTITIONS)
    pool = Pool(gpus=GPUS, node_gpus=node_gpus, gpu_model="H100", memory_mib=81_920)
    mixed = MixedHardware(seed, POOL)
    pools, nodes = mixed.pools(pool), (*(f"n{i:02}" for i in range(node_count)), *mixed.nodes())
    rulebook = Rulebook(seed, CLUSTER, POOL, GPUS, partition)
    author = _Author(dice, partition, nodes, rulebook, mixed)
    for number in range(JOBS):
        author.job(number)
    for number in range(APPLICATIONS):
        author.application(number)
    author.orders()
    author.rubbish()
    ruled = rulebook.orders(START_MS, SPAN_MS)
    author.found += [Publication(min(due_ms, START_MS + SPAN_MS), sent) for due_ms, sent in ruled]
    sharing = Sharing(seed, CLUSTER, POOL, partition)
    author.found += [Publication(due_ms, sent) for due_ms, sent in sharing.publications(START_MS, SPAN_MS)]
    found = sorted(author.found, key=lambda entry: entry.due_ms)
    if sharing.on:
        pools, nodes = {**pools, HALF: sharing.half}, (*nodes, MACHINE)
    catalog = Catalog(clusters={CLUSTER: Cluster(partition=partition, pools=pools)}, default_cluster=CLUSTER)
    shared = sharing if sharing.on else None
    return World(seed, catalog, partition, nodes, node_gpus, tuple(found), shared, mixed.nodes())


class _Author:
    """Writes publications; every draw comes from one stream."""

    def __init__(
        self, dice: Random, partition: int, nodes: tuple[str, ...], rulebook: Rulebook, mixed: MixedHardware
    ) -> None:
        self.found: list[Publication] = []
        self._rulebook = rulebook
        self._mixed = mixed
        self._dice = dice
        self._partition = partition
        self._nodes = nodes
        self._applications_end = dice.random() < APPLICATIONS_END_SHARE

    def job(self, number: int) -> None:
        dice, job_id = self._dice, f"j{number:02}"
        at_ms = START_MS + dice.randrange(0, SPAN_MS - 15 * MINUTE_MS)
        spec = self._mixed.named(self._rulebook.ruled(self._spec()))
        stamp_ms = at_ms
        if dice.random() < 0.1:  # a submitter whose clock is wrong by up to ten minutes either way
            stamp_ms += dice.randint(-10 * MINUTE_MS, 10 * MINUTE_MS)
        self._say(at_ms, JobSubmitted(job_id=job_id, submitted_ms=stamp_ms, spec=spec), job_id, "submitted")
        if dice.random() < 0.12:  # upstream asks again, being unsure
            again_ms = at_ms + dice.randrange(0, 20 * MINUTE_MS)
            self._say(again_ms, JobSubmitted(job_id=job_id, submitted_ms=stamp_ms, spec=spec), job_id, "again")
        if dice.random() < 0.12:
            change_ms = at_ms + dice.randrange(0, 30 * MINUTE_MS)
            change = JobChanged(
                job_id=job_id,
                changed_ms=change_ms,
                priority=dice.randint(1, 9),
                time_limit_s=dice.choice([None, None, 7200.0]),
            )
            self._say(change_ms, change, job_id, "changed")
        if dice.random() < 0.12:
            cancel_ms = at_ms + dice.randrange(0, 60 * MINUTE_MS)
            self._say(cancel_ms, JobCancelled(job_id=job_id, cancelled_ms=cancel_ms), job_id, "cancelled")
        if dice.random() < 0.12:
            order_ms = at_ms + dice.randrange(0, 40 * MINUTE_MS)
            order = CheckpointJob(job_id=job_id, cluster=CLUSTER, ordered_ms=order_ms)
            self._say(order_ms, order, job_id, "checkpoint", cluster=True)

    def _spec(self) -> JobSpec:
        dice = self._dice
        sizes = dice.choices(SIZES, SIZE_WEIGHTS)[0] if self._applications_end else dice.choice(SMALL_SIZES)
        whole_s = dice.choice([90.0, 300.0, 600.0, 900.0, 1500.0, 2400.0]) * dice.uniform(0.7, 1.4)
        by_size = {str(size): round(whole_s * (sizes[0] / size) ** 0.8, 1) for size in sizes}
        labels = {"simulated/run_s": msgspec.json.encode(by_size).decode()}
        if dice.random() < 0.15:
            labels["simulated/fails_at"] = f"{dice.uniform(0.1, 0.95):.2f}"
        restart = RestartPolicy()
        if dice.random() < 0.5:
            restart = RestartPolicy(
                mode=RestartMode.ON_FAILURE, attempts_max=dice.randint(2, 4), backoff_s=dice.choice([0.0, 30.0, 120.0])
            )
        checkpoint = CheckpointPolicy()
        if dice.random() < 0.6:
            checkpoint = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=dice.choice([2.0, 10.0]))
        limit_s = whole_s * dice.uniform(0.4, 0.9) if dice.random() < 0.1 else 4 * 3600.0
        return JobSpec(
            kind=dice.choice(list(Kind)),
            team=dice.choice(["blue", "red", "green"]),
            user=dice.choice(["ann", "bob"]),
            priority=dice.randint(1, 5),
            sizes=list(sizes),
            time_limit_s=round(limit_s, 1),
            restart=restart,
            checkpoint=checkpoint,
            template="simulated",
            labels=labels,
        )

    def application(self, number: int) -> None:
        dice, app_id = self._dice, f"app{number}"
        at_ms = START_MS + dice.randrange(0, 5 * MINUTE_MS)
        spec = self._app_spec()
        self._say(at_ms, ApplicationRegistered(app_id=app_id, registered_ms=at_ms, spec=spec), app_id, "registered")
        if dice.random() < 0.25:
            again_ms = at_ms + dice.randrange(10 * MINUTE_MS, 80 * MINUTE_MS)
            event = ApplicationRegistered(app_id=app_id, registered_ms=again_ms, spec=self._app_spec())
            self._say(again_ms, event, app_id, "registered-again")
        if dice.random() < 0.2:
            cancel_ms = at_ms + dice.randrange(20 * MINUTE_MS, 100 * MINUTE_MS)
            self._say(cancel_ms, JobCancelled(job_id=app_id, cancelled_ms=cancel_ms), app_id, "cancelled")
            if dice.random() < 0.5:
                back_ms = cancel_ms + dice.randrange(1 * MINUTE_MS, 15 * MINUTE_MS)
                event = ApplicationRegistered(app_id=app_id, registered_ms=back_ms, spec=spec)
                self._say(back_ms, event, app_id, "registered-anew")
        if self._applications_end:
            end_ms = START_MS + SPAN_MS
            self._say(end_ms, JobCancelled(job_id=app_id, cancelled_ms=end_ms), app_id, "closed")
        for time_ms in range(START_MS + DEMAND_EVERY_MS, START_MS + SPAN_MS, DEMAND_EVERY_MS):
            load = DemandObserved(
                app_id=app_id,
                cluster=CLUSTER,
                time_ms=time_ms,
                window_s=DEMAND_EVERY_MS / 1000,
                load=round(dice.uniform(0, 40), 2),
                per_gpu=10.0,
            )
            self._say(time_ms, load, app_id, "load", cluster=True)

    def _app_spec(self) -> ApplicationSpec:
        dice = self._dice
        floor = dice.randint(0, 2)
        return ApplicationSpec(
            team="serve",
            user="ops",
            priority=dice.randint(3, 8),
            floor_gpus=floor,
            peak_gpus=max(1, floor + dice.randint(0, 3)),
            switch_max=dice.randint(1, 2),
            template="simulated",
            drain_s=dice.choice([0.0, 2.0]),
            readiness=Readiness(kind=ProbeKind.TCP, port=8000, period_s=10.0) if dice.random() < 0.2 else None,
        )

    def orders(self) -> None:
        """What operators do: drain and undrain, reserve and release."""
        dice = self._dice
        if dice.random() < 0.3:
            node = dice.choice(self._nodes)
            at_ms = START_MS + dice.randrange(10 * MINUTE_MS, 70 * MINUTE_MS)
            until_ms = at_ms + dice.randrange(5 * MINUTE_MS, 40 * MINUTE_MS)
            drain = DrainNode(
                node=node, cluster=CLUSTER, ordered_ms=at_ms, deadline_s=dice.choice([0.0, 120.0, 600.0, 86_400.0])
            )
            self._say(at_ms, drain, node, "drain", cluster=True)
            undrain = UndrainNode(node=node, cluster=CLUSTER, ordered_ms=until_ms)
            self._say(until_ms, undrain, node, "undrain", cluster=True)
        if dice.random() < 0.2:
            node = dice.choice(self._nodes)
            at_ms = START_MS + dice.randrange(0, 60 * MINUTE_MS)
            reserve = ReserveBlock(
                reservation_id="r0",
                cluster=CLUSTER,
                node=node,
                from_ms=at_ms + dice.randrange(0, 20 * MINUTE_MS),
                until_ms=at_ms + 30 * MINUTE_MS,
                ordered_ms=at_ms,
                gpus=dice.choice([[], [0, 1]]),
            )
            self._say(at_ms, reserve, "r0", "reserve", cluster=True)
            if dice.random() < 0.5:
                release_ms = at_ms + 10 * MINUTE_MS
                release = ReleaseBlock(reservation_id="r0", cluster=CLUSTER, ordered_ms=release_ms)
                self._say(release_ms, release, "r0", "release", cluster=True)

    def rubbish(self) -> None:
        """Bytes that are no event, and events that nobody may let in."""
        dice = self._dice
        if dice.random() < 0.5:
            at_ms = START_MS + dice.randrange(0, SPAN_MS)
            topic = dice.choice(["job-events", "demand", "commands", "node-telemetry"])
            self.found.append(Publication(at_ms, Message(topic, b"x", b"{not json", (), self._partition)))
        if dice.random() < 0.3:
            at_ms = START_MS + dice.randrange(0, SPAN_MS)
            future = JobSubmitted(job_id="jx", submitted_ms=at_ms + 400 * 86_400_000, spec=self._spec())
            self._say(at_ms, future, "jx", "from-the-future")

    def _say(self, due_ms: int, event: Event, key: str, what: str, *, cluster: bool = False) -> None:
        identity = f"{key}/{what}/{due_ms}"
        sent = message(
            event,
            key=key,
            id=identity,
            source="/upstream/simulation",
            time_ms=due_ms,
            traceparent=f"00-{self._dice.getrandbits(128) | 1:032x}-{1:016x}-01",
            partition=self._partition if cluster else None,
        )
        self.found.append(Publication(due_ms, sent))
