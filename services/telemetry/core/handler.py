"""From samples to node states: the whole of telemetry's logic as one handler.

Owns: which sample counts, when a state is published, and rebuilding from its own output. Publishes a node's state when
something changed that others act on, otherwise at most every REFRESH_S; usage every USAGE_PERIOD_S. Refuses: believing rubbish,
and acting on findings: a drain is ordered only where the configured policy says so. One instance at a time: it follows every
node it knows, whoever reads that node's partition. Read next: `node.py`, `silence.py`, `forgotten.py`, `usage_keeper.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from schemas.base import Event
from schemas.catalog import Catalog
from schemas.codec import DecodeError, Envelope, decode_record
from schemas.commands import DrainNode, ForgetNode, UndrainNode
from schemas.deadletters import dead_letter
from schemas.messages import message
from schemas.nodes import Finding, Health, NodeForgotten, NodeSampled, NodeStateChanged
from schemas.records import Message, Now, Record
from services.telemetry.core.drains import DrainOrders
from services.telemetry.core.forgotten import Forgotten, refusal
from services.telemetry.core.health_policy import Policy
from services.telemetry.core.node import OUT_OF_ORDER, Node, restored
from services.telemetry.core.silence import DEAF_S_MAX, OWN_PAUSE_S, Ears, Hearing, all_silent, hear, silent
from services.telemetry.core.usage_keeper import UsageKeeper

SOURCE = "/gpugrid/telemetry"
REFRESH_S = 60.0
"""Wall seconds between states of a node on which nothing but its means changed: dashboards need no more from this topic."""


@dataclass
class Known:
    """A node, whether it is heard, and what was last said about it."""

    node: Node
    hearing: Hearing
    published: Hashable = None
    published_ms: int = 0
    published_domain_ms: int = -1
    findings: list[Finding] = field(default_factory=list)


class TelemetryHandler:
    """`rejected` counts what was not believed, by reason or field; `xids` what the driver reported, by number."""

    inputs: tuple[str, ...] = ("node-telemetry", "placements", "executions", "jobs", "commands")
    rebuilt_from: tuple[str, ...] = ("node-states", "usage", "placements", "jobs", "commands")

    def __init__(self, catalog: Catalog, *, policy: Policy | None = None, refresh_s: float = REFRESH_S) -> None:
        self._catalog = catalog
        self._policy = policy or Policy()
        self._refresh_ms = refresh_s * 1000
        self._known: dict[str, Known] = {}
        self._ears: dict[str, Ears] = {name: Ears() for name in catalog.clusters}
        self._first_tick_ms: int | None = None
        self._ticked_ms = 0
        self._drains = DrainOrders()
        self._forgotten = Forgotten()
        self.keeper = UsageKeeper()
        self.rejected: dict[str, int] = {}
        self.xids: dict[int, int] = {}

    # --- the handler's port

    def recover(self, record: Record) -> None:
        """Take over what we, or whoever had the partition before, published, and what others say of jobs and placements."""
        if record.topic == "usage":
            self.keeper.restore(record)
            return
        if record.topic == "node-states" and record.value is None:
            self._forgotten.back((record.key or b"").decode("utf-8", "replace"))
            return
        try:
            envelope = decode_record(record)
        except DecodeError:
            return
        if isinstance(envelope.event, NodeStateChanged):
            self._restore(envelope.event)
        elif isinstance(envelope.event, NodeForgotten):
            self._restore_forgotten(envelope.event)
        elif isinstance(envelope.event, DrainNode | UndrainNode):
            self._drains.take(envelope.event, envelope.source)
        else:
            self.keeper.learn(envelope.event, record.timestamp_ms, 0)

    def handle(self, record: Record, now: Now) -> list[Message]:
        """One sample: the node's state if it is worth publishing, a dead letter if it can't be read."""
        if record.topic != "node-telemetry":
            return self._told(record, now)
        try:
            envelope = decode_record(record)
        except DecodeError as error:
            return [*self._unreadable(record, now, error.code), self._dead(record, error.code, error.detail, now)]
        sample = envelope.event
        if not isinstance(sample, NodeSampled):
            return [self._dead(record, "unexpected_type", f"{envelope.type} doesn't belong here", now)]
        cluster = self._catalog.clusters.get(sample.cluster)
        if cluster is None:
            return [self._dead(record, "unknown_cluster", f"the catalog has no cluster {sample.cluster}", now)]
        if sample.pool not in cluster.pools:
            return [self._dead(record, "unknown_pool", f"cluster {sample.cluster} has no pool {sample.pool}", now)]
        return self._sampled(sample, envelope, now)

    def tick(self, now: Now) -> list[Message]:
        """Whose silence has lasted too long by now."""
        self._listen(now.wall_ms)
        outputs = []
        for cluster, ears in self._ears.items():
            here = [known for known in self._known.values() if known.node.cluster == cluster]
            together = all_silent([(known.hearing, known.node.period_s) for known in here], now.wall_ms)
            for known in here:
                worse = silent(known.hearing, ears, known.node.period_s, now.wall_ms, together=together)
                if worse is not None:
                    known.hearing.health = worse
                    identity = f"{known.node.name}/{known.node.incarnation}/{worse.value}/{now.wall_ms}"
                    outputs.extend(self._published(known, identity, "", now))
        outputs.extend(self._usage_message(key, event, now) for key, event in self.keeper.old(now))
        for said in self._forgotten.old(now):
            partition = self._catalog.partition_of(said.cluster)
            outputs.append(Message("node-states", said.node.encode(), None, (), partition))
        return outputs

    # --- for metrics and tests

    def health_of(self, node: str) -> Health | None:
        """None for a node never heard of."""
        known = self._known.get(node)
        return None if known is None else known.hearing.health

    def nodes(self) -> Iterator[tuple[Node, Health]]:
        return ((known.node, known.hearing.health) for known in self._known.values())

    def findings(self) -> Iterator[tuple[Node, Finding]]:
        """All that are open as of each node's last sample."""
        return ((known.node, found) for known in self._known.values() for found in known.findings)

    # ---

    def _restore(self, state: NodeStateChanged) -> None:
        known = self._known.get(state.node)
        if known is not None and known.published_ms > 0 and state.time_ms <= known.published_domain_ms:
            return  # our own, already in the state, or older
        if self._forgotten.is_over(state):
            return
        self._forgotten.back(state.node)
        node = restored(state)
        hearing = Hearing(health=state.health)
        if known is not None:
            node.period_s = known.node.period_s
            if known.published_ms > 0:  # it has been heard here since
                node.sampled_ms = max(node.sampled_ms, known.node.sampled_ms)
            node.watch = known.node.watch
            hearing.heard_ms = known.hearing.heard_ms
        self.keeper.usage.cut(node.name, node.slots_per_card)
        self._known[state.node] = Known(node, hearing, _material(state), 0, state.time_ms, state.findings)

    def _restore_forgotten(self, said: NodeForgotten) -> None:
        known = self._known.get(said.node)
        if known is not None and known.published_ms > 0 and said.time_ms <= known.published_domain_ms:
            return  # it came back since
        self._known.pop(said.node, None)
        self._forgotten.words[said.node] = said

    def _told(self, record: Record, now: Now) -> list[Message]:
        """Placements, progress, models, orders. Whoever owns these topics writes the dead letters of what can't be read there."""
        try:
            envelope = decode_record(record)
        except DecodeError:
            return []
        event = envelope.event
        if isinstance(event, DrainNode | UndrainNode):
            self._drains.take(event, envelope.source)
            if isinstance(event, DrainNode) or envelope.source == SOURCE:
                return []
            if self._pardoned(event.node) or self._drains.ever(event.node):
                return []
            detail = f"no node or machine is called {event.node}: nothing of it was drained or kept from work"
            return [self._dead(record, "unknown_node", detail, now)]
        if isinstance(event, ForgetNode):
            return self._forget(record, event, envelope, now)
        ended = self.keeper.learn(event, record.timestamp_ms, now.domain_ms)
        return [self._usage_message(key, told, now) for key, told in self.keeper.final(ended, now)]

    def _forget(self, record: Record, order: ForgetNode, envelope: Envelope, now: Now) -> list[Message]:
        """The word that a node is gone, once for the life that was meant: repeated as it was, however often the order comes."""
        known = self._known.get(order.node)
        if known is None or known.node.cluster != order.cluster:
            said = self._forgotten.repeated(order)
            if said is None:
                return [self._dead(record, "unknown_node", f"cluster {order.cluster} has no node {order.node}", now)]
        else:
            refused = refusal(order, known.node, known.hearing.health)
            if refused is not None:
                return [self._dead(record, *refused, now)]
            said = self._forgotten.word(order, known.node, max(now.domain_ms, known.published_domain_ms + 1))
            del self._known[order.node]
        self._drains.forget(order.node)
        identity = f"{envelope.id}/forgotten/{order.node}"
        word = self._message(said, said.node, identity, said.cluster, now, envelope.traceparent)
        return [word, *(self._usage_message(key, None, now) for key in self.keeper.forget_node(order.node))]

    def _pardoned(self, name: str) -> bool:
        """Clear the errors of a node, or of all nodes of a machine, as of their next sample: what is still wrong shows in it again."""
        found = [known.node for known in self._known.values() if name in (known.node.name, known.node.machine)]
        for node in found:
            node.pardon()
        return bool(found)

    def _sampled(self, sample: NodeSampled, envelope: Envelope, now: Now) -> list[Message]:
        known = self._known.get(sample.node)
        if known is None or known.node.cluster != sample.cluster:
            if self._forgotten.is_late(sample.node, sample.wall_ms):
                self._count("forgotten")
                return []
            known = self._enrolled(sample, now)
        node = known.node
        if node.sampled_ms < 0:
            node.sampled_ms = self.keeper.sampled_ms(node.name)  # what was charged before our start stays charged
        refused = node.take(sample, self._policy, self.keeper.holders.on(sample.node))
        for reason in refused:
            self._count(reason)
        node.extra = []
        if node.seen:
            self._count_xids(sample)
            self.keeper.charge(node)
            node.extra = self.keeper.slow_jobs(node.name)
        self._heard(known, now, old=any(reason in OUT_OF_ORDER for reason in refused))
        outputs = self._published(known, f"{envelope.id}/state", envelope.traceparent, now)
        outputs.extend(self._usage_message(key, event, now) for key, event in self.keeper.due(node.name, now))
        return [*outputs, *self._orders(known, now)]

    def _enrolled(self, sample: NodeSampled, now: Now) -> Known:
        """A node heard for the first time, or for the first time since it was forgotten."""
        known = Known(Node(sample.node, sample.cluster, sample.pool), Hearing(steady_ms=now.wall_ms))
        said = self._forgotten.back(sample.node)
        if said is not None and said.cluster == sample.cluster:
            known.node.incarnation = said.incarnation + 1
            known.published_domain_ms = said.time_ms
        self._known[sample.node] = known
        return known

    def _orders(self, known: Known, now: Now) -> list[Message]:
        """Drains, where the policy lets us order them; else they stay wishes that people can see."""
        if not self._policy.drains:
            return []
        order = self._drains.due(known.node, now.domain_ms)
        if order is None:
            return []
        identity = f"{known.node.name}/{type(order).__name__}/{known.node.sampled_ms}"
        return [self._message(order, known.node.name, identity, known.node.cluster, now)]

    def _unreadable(self, record: Record, now: Now, code: str) -> list[Message]:
        """Its agent lives, but says nothing that can be understood: what we know of its GPUs is stale."""
        known = self._known.get((record.key or b"").decode("utf-8", "replace"))
        if known is None:
            return []
        known.node.garbled = code
        self._heard(known, now)
        identity = f"{record.topic}/{record.partition}/{record.offset}/state"
        return self._published(known, identity, "", now)

    def _heard(self, known: Known, now: Now, *, old: bool = False) -> None:
        ears = self._ears[known.node.cluster]
        back = hear(known.hearing, ears, known.node.period_s, now.wall_ms, old=old)
        if back and known.hearing.health is Health.LOST:
            known.node.incarnation += 1
        if back or known.hearing.health not in (Health.SUSPECT, Health.LOST):
            known.hearing.health = known.node.answering()

    def _published(self, known: Known, identity: str, traceparent: str, now: Now) -> list[Message]:
        """The state as a message, if it is worth one."""
        # Never before what was said already, whoever said it with whatever clock: readers take the newest.
        time_ms = max(now.domain_ms, known.published_domain_ms + 1)
        state = known.node.state(known.hearing.health, time_ms, self._policy)
        known.findings = state.findings
        material = _material(state)
        if material == known.published and now.wall_ms - known.published_ms < self._refresh_ms:
            return []
        known.published, known.published_ms, known.published_domain_ms = material, now.wall_ms, time_ms
        return [self._message(state, state.node, identity, state.cluster, now, traceparent)]

    def _usage_message(self, key: str, event: Event | None, now: Now) -> Message:
        if event is None:
            return Message("usage", key.encode(), None, (), self.keeper.partition(key, self._catalog))
        cluster = self.keeper.remember_cluster(key, event)
        return self._message(event, key, f"{key}/{now.wall_ms}", cluster, now)

    def _message(self, event: Event, key: str, identity: str, cluster: str, now: Now, traceparent: str = "") -> Message:
        return message(
            event,
            key=key,
            id=identity,
            source=SOURCE,
            time_ms=now.domain_ms,
            traceparent=traceparent,
            partition=self._catalog.partition_of(cluster),
        )

    def _listen(self, wall_ms: int) -> None:
        """Judge our own hearing: a gap between ticks is our pause, and a start without samples doesn't last for ever."""
        if self._first_tick_ms is None:
            self._first_tick_ms = wall_ms
        elif wall_ms - self._ticked_ms > OWN_PAUSE_S * 1000:
            for ears in self._ears.values():
                ears.since_ms = wall_ms if ears.since_ms is not None else None
        self._ticked_ms = wall_ms
        if wall_ms - self._first_tick_ms >= DEAF_S_MAX * 1000:
            for ears in self._ears.values():
                ears.since_ms = wall_ms if ears.since_ms is None else ears.since_ms

    def _dead(self, record: Record, reason: str, detail: str, now: Now) -> Message:
        self._count(reason)
        letter = dead_letter(record, service="telemetry", reason=reason, detail=detail, now=now)
        identity = f"{record.topic}/{record.partition}/{record.offset}/telemetry"
        return message(letter, key=identity, id=identity, source=SOURCE, time_ms=now.domain_ms)

    def _count(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def _count_xids(self, sample: NodeSampled) -> None:
        for gpu in sample.gpus:
            for one in gpu.xids:
                self.xids[one.code] = self.xids.get(one.code, 0) + one.count


def _material(state: NodeStateChanged) -> Hashable:
    """What others act on: everything but the moment and the means."""
    gpus = tuple((gpu.index, gpu.uuid, gpu.healthy, gpu.memory_total_mib, gpu.stale, gpu.action) for gpu in state.gpus)
    findings = tuple((found.code, found.gpu, found.job_id, found.detail) for found in state.findings)
    place = (state.cluster, state.pool, state.rack, state.order, state.machine, state.slots_per_card)
    return (state.health, state.incarnation, place, state.gpu_model, state.driver, gpus, findings)
