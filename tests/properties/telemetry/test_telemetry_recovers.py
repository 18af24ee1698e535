"""Any history of samples, errors, rubbish, silence and restarts: states stay sane, and a rebuilt handler agrees with the old one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import ForgetNode
from schemas.messages import message
from schemas.nodes import Health, NodeForgotten
from schemas.records import Record
from tests.unit.telemetry.telemetry_rig import Fed, gpu

NODES = ("n00", "n01", "n02")
ANY_NUMBER = st.one_of(
    st.none(),
    st.floats(allow_nan=False),
    st.sampled_from([4294967295.0, -1.0, 808334905.0, 9.223372036854776e18]),
    st.floats(0, 100),
)
GPUS = st.builds(
    gpu,
    st.integers(0, 2),
    utilization_pct=ANY_NUMBER,
    memory_used_mib=ANY_NUMBER,
    memory_total_mib=ANY_NUMBER,
    error=st.sampled_from([None, None, None, "GPU is lost"]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("sample"), st.sampled_from(NODES), st.lists(GPUS, min_size=1, max_size=3), st.integers(-90, 20)
        ),
        st.tuples(st.just("rubbish"), st.sampled_from(NODES)),
        st.tuples(st.just("pass"), st.sampled_from([1.0, 5.0, 20.0, 70.0])),
        st.tuples(st.just("pause"), st.sampled_from([5.0, 600.0])),
        st.tuples(st.just("forget"), st.sampled_from(NODES), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=30,
)


def rebuilt(old: Fed) -> Fed:
    fed = Fed()
    fed.wall_ms, fed.out, fed.offset = old.wall_ms, old.out, old.offset
    for offset, sent in enumerate(old.out):
        if sent.topic == "node-states":
            fed.handler.recover(Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, fed.wall_ms))
    return fed


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_history_of_samples(steps):
    fed = Fed()
    for step in steps:
        match step:
            case "sample", node, gpus, skew_s:
                fed.sample(node, *gpus, wall_ms=fed.wall_ms + skew_s * 1000)
            case "rubbish", node:
                fed.feed(fed.raw(node, b"\xff{"))
            case "pass", duration_s:
                fed.pass_s(duration_s)
            case "pause", duration_s:
                fed.wall_ms += round(duration_s * 1000)
            case "forget", node, incarnation, force:
                forget(fed, node, incarnation, force)
            case "restart", _:
                before = {node: fed.health(node) for node in NODES}
                fed = rebuilt(fed)
                assert {node: fed.health(node) for node in NODES} == before
    check(fed)


def forget(fed: Fed, node: str, incarnation: int, force: bool) -> None:
    order = ForgetNode(node=node, cluster="c0", ordered_ms=fed.wall_ms, incarnation=incarnation, force=force)
    fed.offset += 1
    sent = message(order, key=node, id=f"{node}/forget/{fed.offset}", source="/t", time_ms=fed.wall_ms, partition=0)
    fed.feed(Record("commands", 0, fed.offset, node.encode(), sent.value, sent.headers, fed.wall_ms))


def check(fed: Fed) -> None:
    """Values are within bounds, incarnations only rise, and only at a return from lost or from having been forgotten."""
    last: dict[str, tuple[int, Health]] = {}
    gone: set[str] = set()
    for line in fed.words:
        if isinstance(line, NodeForgotten):
            assert line.node in last, "only what was heard of is forgotten"
            assert line.incarnation == last[line.node][0]
            gone.add(line.node)
            continue
        for each in line.gpus:
            assert 0 <= each.utilization_pct <= 100
            assert 0 <= each.memory_used_mib <= 16_777_216
        incarnation, health = last.get(line.node, (line.incarnation, line.health))
        assert line.incarnation - incarnation in (0, 1)
        if line.node in gone:
            assert line.incarnation == incarnation + 1
            gone.remove(line.node)
            health = Health.LOST
        if line.incarnation > incarnation:
            assert health is Health.LOST
            assert line.health in (Health.USABLE, Health.DEGRADED)
        if line.health is Health.LOST and health is not Health.LOST:
            assert health is Health.SUSPECT
        last[line.node] = (line.incarnation, line.health)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_live_handler_that_reads_its_own_output_back_changes_nothing(steps):
    outputs = []
    for reads_back in (False, True):
        fed = Fed()
        for step in steps:
            match step:
                case "sample", node, gpus, skew_s:
                    sent = fed.sample(node, *gpus, wall_ms=fed.wall_ms + skew_s * 1000)
                    for each in sent if reads_back else []:
                        if each.topic == "node-states":
                            fed.handler.recover(Record(each.topic, 0, 0, each.key, each.value, each.headers, 0))
                case "pass", duration_s:
                    fed.pass_s(duration_s)
                case _:
                    continue
        outputs.append(fed.out)
    assert outputs[0] == outputs[1]
