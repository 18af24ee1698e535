"""Silence: suspect, lost, back; our own deafness makes nobody lost; flapping costs patience."""

from __future__ import annotations

import pytest

from services.telemetry.core.handler import TelemetryHandler
from tests.build import catalog
from tests.unit.telemetry.telemetry_rig import Fed

OTHERS = ("n01", "n02")


def alive(*, handler: TelemetryHandler | None = None) -> Fed:
    fed = Fed(handler)
    fed.pass_s(20, sampling=("n00", *OTHERS))
    return fed


def test_a_silent_node_is_suspect_then_lost_and_back_with_a_new_incarnation():
    fed = alive()
    seen = []
    for _ in range(80):
        fed.pass_s(1, sampling=OTHERS)
        seen.append(fed.health())
    assert seen.index("suspect") in range(9, 16)
    assert seen.index("lost") in range(54, 61)
    assert [line.health.value for line in fed.lines if line.node == "n00"] == ["usable", "suspect", "lost"]
    fed.sample("n00")
    assert fed.health() == "usable"
    last = fed.lines[-1]
    assert (last.incarnation, last.health.value) == (1, "usable")


def test_a_node_back_from_suspicion_keeps_its_incarnation():
    fed = alive()
    fed.pass_s(30, sampling=OTHERS)
    assert fed.health() == "suspect"
    fed.sample("n00")
    assert (fed.health(), fed.lines[-1].incarnation) == ("usable", 0)


@pytest.mark.parametrize("period_s", [10.0, 60.0])
def test_slow_agents_get_more_time(period_s):
    fed = Fed()
    for _ in range(4):
        fed.sample("n00", period_s=period_s)
        fed.pass_s(period_s, sampling=OTHERS)
    fed.pass_s(3 * period_s - period_s - 1, sampling=OTHERS)
    assert fed.health() == "usable"
    fed.pass_s(2, sampling=OTHERS)
    assert fed.health() == "suspect"


def test_our_own_pause_makes_nobody_suspect():
    fed = alive()
    fed.wall_ms += 300_000
    fed.out.extend(fed.handler.tick(fed.now))
    assert {fed.health(node) for node in ("n00", *OTHERS)} == {"usable"}
    fed.pass_s(14, sampling=OTHERS)
    assert fed.health() == "usable"
    fed.pass_s(10, sampling=OTHERS)
    assert fed.health() == "suspect"


def test_after_a_restart_timers_count_from_the_first_sample_heard():
    before = alive()
    states = [line for line in before.out if line.topic == "node-states"]
    fed = restarted(before, states)
    fed.pass_s(100)
    assert fed.health() == "usable"
    fed.pass_s(14, sampling=OTHERS)
    assert fed.health() == "usable"
    fed.pass_s(60, sampling=OTHERS)
    assert fed.health() == "lost"


def test_after_a_restart_without_any_sample_timers_count_in_the_end():
    before = alive()
    fed = restarted(before, [line for line in before.out if line.topic == "node-states"])
    fed.pass_s(140)
    assert fed.health() == "suspect"


@pytest.mark.parametrize("silent_s", [30, 100])
def test_after_a_restart_an_old_sample_brings_no_node_back(silent_s: int):
    before = alive()
    last_ms = before.wall_ms
    before.pass_s(silent_s, sampling=OTHERS)
    silent = before.health()
    assert silent == {30: "suspect", 100: "lost"}[silent_s]
    fed = restarted(before, [line for line in before.out if line.topic == "node-states"])
    for back_s in (5, 10, 5):
        fed.sample("n00", wall_ms=last_ms - back_s * 1000)
        fed.pass_s(1, sampling=OTHERS)
    assert fed.health() == silent
    fed.sample("n00")
    assert fed.health() == "usable"


def test_a_cluster_that_falls_silent_at_once_is_suspect_but_not_lost_for_long():
    fed = alive()
    fed.pass_s(300)
    assert {fed.health(node) for node in ("n00", *OTHERS)} == {"suspect"}
    fed.pass_s(50, sampling=OTHERS)
    assert [fed.health(node) for node in ("n00", *OTHERS)] == ["suspect", "usable", "usable"]
    fed.pass_s(20, sampling=OTHERS)
    assert fed.health() == "lost"


def test_a_cluster_that_stays_silent_is_lost_in_the_end():
    fed = alive()
    fed.pass_s(620)
    assert {fed.health(node) for node in ("n00", *OTHERS)} == {"lost"}


def test_one_node_alone_is_lost_after_the_usual_time():
    fed = Fed()
    fed.pass_s(20, sampling=("n00",))
    fed.pass_s(61)
    assert fed.health() == "lost"


def test_silence_in_one_cluster_says_nothing_about_another():
    fed = Fed(TelemetryHandler(catalog(clusters=2)))
    for node, cluster in (("n00", "c0"), ("n01", "c0"), ("m00", "c1")):
        fed.sample(node, cluster=cluster)
    for _ in range(15):
        fed.pass_s(5)
        fed.sample("m00", cluster="c1")
    assert [fed.health(node) for node in ("n00", "n01", "m00")] == ["suspect", "suspect", "usable"]


def test_a_flapping_node_needs_more_samples_each_time_up_to_a_limit_and_is_forgiven():
    fed = alive()
    needed = []
    for _ in range(6):
        fed.pass_s(25, sampling=OTHERS)
        assert fed.health() == "suspect"
        samples = 0
        while fed.health() == "suspect":
            fed.pass_s(4, sampling=OTHERS)
            fed.sample("n00")
            samples += 1
        needed.append(samples)
    assert needed == [1, 2, 4, 8, 8, 8]
    fed.pass_s(620, sampling=("n00", *OTHERS))
    fed.pass_s(25, sampling=OTHERS)
    fed.sample("n00")
    assert fed.health() == "usable"


@pytest.mark.parametrize("back_s", [0, 1, 20, 59])
@pytest.mark.parametrize(("silent_s", "health"), [(30, "suspect"), (80, "lost")])
def test_old_samples_bring_no_node_back_however_often_they_come(silent_s, health, back_s):
    fed = alive()
    said_ms = fed.wall_ms - 5_000
    fed.pass_s(silent_s, sampling=OTHERS)
    assert fed.health() == health
    for _ in range(10):
        fed.sample("n00", wall_ms=said_ms - back_s * 1000)
        fed.pass_s(1, sampling=OTHERS)
    assert fed.health() == health
    assert fed.lines[-1].node != "n00" or fed.lines[-1].health.value == health
    fed.sample("n00")
    assert (fed.health(), fed.lines[-1].incarnation) == ("usable", int(health == "lost"))


@pytest.mark.parametrize("back_s", [20, 59, 61, 3600])
@pytest.mark.parametrize("silent_s", [0, 30, 80])
def test_a_node_whose_clock_was_set_back_stays_or_comes_back(silent_s, back_s):
    fed = alive()
    fed.pass_s(silent_s, sampling=OTHERS)
    before, seen = fed.health(), []
    for _ in range(14):
        fed.sample("n00", wall_ms=fed.wall_ms - back_s * 1000)
        fed.pass_s(5, sampling=OTHERS)
        seen.append(fed.health())
    assert seen[-1] == "usable"
    assert set(seen) <= {before, "usable"}, "who speaks gets no worse"


def restarted(before: Fed, states) -> Fed:
    """A new handler, rebuilt from what the old one published."""
    from schemas.records import Record

    fed = Fed()
    fed.wall_ms = before.wall_ms
    for offset, sent in enumerate(states):
        fed.handler.recover(Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, fed.wall_ms))
    return fed
