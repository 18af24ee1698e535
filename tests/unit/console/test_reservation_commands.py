"""reserve, reservations, release: what operators type becomes events, and what the allocator made of them is shown."""

from __future__ import annotations

import pytest

from schemas.codec import decode_record
from schemas.commands import ReleaseBlock, ReserveBlock
from tests import build
from tests.unit.console.console_rig import Rig

HOUR_MS = 3_600_000


def two_nodes() -> Rig:
    rig = Rig()
    rig.give(build.node("n00", order=0), build.node("n01", order=1))
    return rig


def ordered(rig: Rig) -> ReserveBlock:
    event = decode_record(rig.records("commands")[-1]).event
    assert isinstance(event, ReserveBlock)
    return event


def test_a_window_is_reserved_shown_kept_free_and_released() -> None:
    rig = two_nodes()
    said = rig.run("reserve", "n01", "--gpus", "0-3,6", "--from", "1h", "--for", "2h", "--cause", "new fan")
    event, now_ms = ordered(rig), rig.clock.now_ms()
    assert (event.node, event.gpus, event.cause) == ("n01", [0, 1, 2, 3, 6], "new fan")
    assert (event.from_ms, event.until_ms) == (now_ms + HOUR_MS, now_ms + 3 * HOUR_MS)
    assert event.reservation_id in said
    rig.give(event)
    (row,) = rig.json("reservations")["reservations"]
    assert (row["reservation_id"], row["node"], row["gpus"]) == (event.reservation_id, "n01", [0, 1, 2, 3, 6])
    assert "0–3,6" in rig.run("reservations") or "0-3,6" in rig.run("reservations")
    rig.run("release", event.reservation_id)
    release = decode_record(rig.records("commands")[-1]).event
    assert release == ReleaseBlock(reservation_id=event.reservation_id, cluster="c0", ordered_ms=release.ordered_ms)


def test_a_job_that_would_reach_into_the_window_waits_and_is_told_why() -> None:
    rig = two_nodes()
    for node in ("n00", "n01"):
        rig.run("reserve", node, "--for", "2h")
        rig.give(ordered(rig))
    rig.give(build.accepted("j", 8), build.forecast("j", {8: 600.0}))
    assert rig.json("why", "j")["reason"] == "reserved"


def test_a_date_is_utc_and_json_tells_the_window() -> None:
    rig = two_nodes()
    told = rig.json("reserve", "n00", "--for", "30m", "--from", "2099-01-31T08:00")
    assert (told["from_ms"], told["until_ms"]) == (4_073_529_600_000, 4_073_531_400_000)
    assert (told["gpus"], ordered(rig).gpus) == ([], [])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["reserve", "n07", "--for", "1h"], 1, "No node is named n07"),
        (["reserve", "n00", "--for", "1h", "--gpus", "6-9"], 1, "n00 has no GPU 8; it has"),
        (["reserve", "n00", "--for", "1h", "--from", "2001-01-01"], 1, "over already"),
        (["reserve", "n00", "--for", "1h", "--gpus", "3-1"], 2, "no range of indices"),
        (["reserve", "n00", "--for", "1h", "--from", "soon"], 2, "is no time"),
        (["reserve", "n00"], 2, "Missing option"),
        (["release", "r1"], 1, "No reservation is named r1"),
    ],
)
def test_what_makes_no_sense_is_not_sent(words: list[str], code: int, said: str) -> None:
    rig = two_nodes()
    rig.run(*words, code=code)
    assert said in rig.stderr
    assert rig.records("commands") == []


def test_nothing_reserved_says_so() -> None:
    assert "Nothing is reserved." in two_nodes().run("reservations")
