"""A node that is gone for good: who may say so, what telemetry says of it then, and what it is when it comes back."""

from __future__ import annotations

from schemas.codec import decode
from schemas.commands import DrainNode, ForgetNode
from schemas.deadletters import DeadLetter
from schemas.messages import message
from schemas.nodes import Health, NodeForgotten
from schemas.records import Message, Record
from services.telemetry.core.forgotten import FORGOTTEN_KEPT_MS
from services.telemetry.core.handler import TelemetryHandler
from tests.build import catalog
from tests.unit.telemetry.telemetry_rig import Fed, gpu


def order(fed: Fed, node: str = "n00", *, incarnation: int = 0, force: bool = False, again: Record | None = None):
    """The order as it comes from the topic, and what is said because of it."""
    event = ForgetNode(
        node=node, cluster="c0", ordered_ms=fed.wall_ms, incarnation=incarnation, force=force, cause="sold"
    )
    sent = message(event, key=node, id=f"{node}/forget/{fed.wall_ms}", source="/t", time_ms=fed.wall_ms, partition=0)
    fed.offset += 1
    record = again or Record("commands", 0, fed.offset, node.encode(), sent.value, sent.headers, fed.wall_ms)
    return record, fed.feed(record)


def events(sent: list[Message]) -> list[object]:
    return [decode(each.headers, each.value).event for each in sent if each.value is not None]


def gone(fed: Fed) -> None:
    """n00 is silent for so long that it is lost; n01 is heard."""
    fed.pass_s(10, sampling=("n00", "n01"))
    fed.pass_s(90, sampling=("n01",))
    assert fed.health() == "lost"


def rebuilt(old: Fed, *, compacted: bool) -> Fed:
    """Telemetry after a restart, from its topics as they are, or as compaction leaves them."""
    fed = Fed(TelemetryHandler(catalog(gpus=64)))
    fed.wall_ms, fed.offset = old.wall_ms, old.offset
    kept = {(sent.topic, sent.key): offset for offset, sent in enumerate(old.out)}
    for offset, sent in enumerate(old.out):
        if sent.topic in ("node-states", "usage") and (not compacted or kept[sent.topic, sent.key] == offset):
            fed.handler.recover(Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, fed.wall_ms))
    return fed


def test_a_lost_node_is_forgotten_and_its_usage_goes_with_it() -> None:
    fed = Fed()
    gone(fed)
    _, sent = order(fed)
    (said,) = events(sent)
    assert isinstance(said, NodeForgotten)
    assert (said.node, said.pool, said.incarnation, said.cause) == ("n00", "h100", 0, "sold")
    assert said.time_ms > max(line.time_ms for line in fed.lines if line.node == "n00")
    assert [(each.topic, each.key) for each in sent if each.value is None] == [("usage", b"node/n00")]
    assert fed.health() == "unknown"
    fed.pass_s(120, sampling=("n01",))
    assert [line.node for line in fed.words[-2:]] == ["n01"] * 2, "nothing more is said of it"


def test_a_node_that_is_heard_is_forgotten_only_by_force() -> None:
    fed = Fed()
    fed.sample()
    _, sent = order(fed)
    (letter,) = events(sent)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.topic) == ("node_alive", "commands")
    assert fed.health() == "usable"
    _, sent = order(fed, force=True)
    assert isinstance(events(sent)[0], NodeForgotten)
    fed.wall_ms += 5000
    fed.sample()
    assert (fed.lines[-1].incarnation, fed.lines[-1].health) == (1, Health.USABLE), "its agent goes on: a new node"


def test_a_suspect_node_may_be_forgotten_before_it_is_lost() -> None:
    fed = Fed()
    fed.pass_s(10, sampling=("n00", "n01"))
    fed.pass_s(20, sampling=("n01",))
    assert fed.health() == "suspect"
    _, sent = order(fed)
    assert isinstance(events(sent)[0], NodeForgotten)


def test_an_order_about_nobody_or_about_an_earlier_life_is_a_dead_letter() -> None:
    fed = Fed()
    gone(fed)
    _, sent = order(fed, "n0")
    assert [letter.reason for letter in events(sent)] == ["unknown_node"]
    fed.pass_s(60, sampling=("n00", "n01"))
    fed.pass_s(90, sampling=("n01",))
    _, sent = order(fed, incarnation=0, force=True)
    assert [letter.reason for letter in events(sent)] == ["node_returned"]
    _, sent = order(fed, incarnation=1)
    assert isinstance(events(sent)[0], NodeForgotten)


def test_an_order_that_comes_twice_says_the_same_word_and_never_ends_a_later_life() -> None:
    fed = Fed()
    gone(fed)
    record, first = order(fed)
    fed.wall_ms += 60_000
    _, second = order(fed, again=record)
    assert [(each.value, each.key) for each in first[:1]] == [(each.value, each.key) for each in second]
    fed.wall_ms += 60_000
    fed.sample()
    _, third = order(fed, again=record)
    assert [letter.reason for letter in events(third)] == ["node_returned"]
    assert fed.health() == "usable"


def test_samples_of_the_former_life_that_come_late_bring_nobody_back() -> None:
    fed = Fed()
    gone(fed)
    late_ms = fed.wall_ms - 95_000
    order(fed)
    said = len(fed.words)
    for back_ms in (0, 5000, 60_000):
        fed.sample("n00", wall_ms=late_ms - back_ms)
    assert fed.health() == "unknown"
    assert len(fed.words) == said
    assert fed.handler.rejected["forgotten"] == 3
    fed.sample("n00", wall_ms=late_ms - 3_600_000)
    assert fed.health() == "usable", "a clock that was set back by an hour is no late sample"


def test_whoever_comes_back_is_a_new_node_also_after_restarts() -> None:
    for compacted in (False, True):
        fed = Fed()
        fed.sample("n00", gpu(0, error="GPU is lost"), gpu(1))
        gone(fed)
        order(fed)
        fed = rebuilt(fed, compacted=compacted)
        assert fed.health() == "unknown"
        assert fed.health("n01") == "usable"
        fed.pass_s(120, sampling=("n01",))
        assert not [line for line in fed.words if line.node == "n00"], "a restart doesn't bring it back"
        fed.sample("n00", gpu(0), gpu(1), gpu(2))
        back = fed.lines[-1]
        assert (back.node, back.incarnation, back.health, len(back.gpus)) == ("n00", 1, Health.USABLE, 3)
        again = rebuilt(fed, compacted=compacted)
        assert again.health() == "usable"


def test_the_topic_drops_the_word_when_nothing_can_tell_of_that_life_any_more() -> None:
    fed = Fed()
    gone(fed)
    order(fed)
    fed.wall_ms += FORGOTTEN_KEPT_MS - 1000
    fed.sample("n01")
    assert not [each for each in fed.handler.tick(fed.now) if each.topic == "node-states" and each.key == b"n00"]
    fed.wall_ms += 1000
    removed = [each for each in fed.handler.tick(fed.now) if each.topic == "node-states" and each.key == b"n00"]
    assert [each.value for each in removed] == [None]
    fed.out.extend(removed)
    assert rebuilt(fed, compacted=False).health() == "unknown"
    fed.sample()
    assert fed.lines[-1].incarnation == 0


def test_a_node_that_was_forgotten_is_not_drained_when_it_comes_back() -> None:
    fed = Fed()
    gone(fed)
    drain = DrainNode(node="n00", cluster="c0", ordered_ms=fed.wall_ms)
    sent = message(drain, key="n00", id="d", source="/gpugrid/telemetry", time_ms=fed.wall_ms, partition=0)
    fed.feed(Record("commands", 0, 900, b"n00", sent.value, sent.headers, fed.wall_ms))
    order(fed)
    fed.sample()
    assert not [event for event in events(fed.out) if isinstance(event, DrainNode)]
