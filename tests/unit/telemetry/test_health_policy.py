"""Errors by class: which are only counted, which keep new work away, which ask for a drain, and what brings a GPU back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.codec import decode
from schemas.commands import DrainNode, UndrainNode
from schemas.deadletters import DeadLetter
from schemas.messages import message
from schemas.nodes import FindingCode, Health, HealthAction, HostSample, RemappedRows, XidReport
from schemas.records import Record
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.core.health_policy import RULES, Policy, Recovery, read_overrides
from tests.build import catalog
from tests.unit.telemetry.telemetry_rig import Fed, gpu

XIDS = {int(key.split()[1]): rule for key, rule in RULES.items() if key.startswith("xid ")}


def once(fed: Fed, **changed) -> None:
    """One sample of a node with two GPUs, the first changed, five seconds later."""
    host = changed.pop("host", None)
    fed.wall_ms += 5000
    fed.sample("n00", gpu(0, **changed), gpu(1), **({"host": host} if host else {}))


def after(fed: Fed, samples: int, **changed) -> None:
    for _ in range(samples):
        once(fed, **changed)


def first(fed: Fed):
    return fed.lines[-1].gpus[0]


@pytest.mark.parametrize("code", XIDS)
def test_every_xid_of_the_table_does_what_the_table_says(code: int) -> None:
    fed = Fed()
    after(fed, 2)
    once(fed, xids=[XidReport(code=code, count=3)])
    rule, state = XIDS[code], fed.lines[-1]
    (found,) = state.findings
    assert (found.code, found.gpu, found.action) == (FindingCode.XID, 0, rule.action)
    assert found.detail == f"xid {code}: {rule.meaning}"
    assert state.gpus[0].healthy == (rule.action is HealthAction.COUNT)
    assert state.gpus[1].healthy
    assert state.health is (Health.USABLE if rule.action is HealthAction.COUNT else Health.DEGRADED)
    assert fed.handler.xids == {code: 3}
    assert all(rule.source for rule in RULES.values())


def test_an_xid_nobody_knows_is_counted_and_takes_no_card_away() -> None:
    fed = Fed()
    once(fed, xids=[XidReport(code=777)])
    assert first(fed).healthy
    assert fed.lines[-1].findings[0].detail == "xid 777: not in gpugrid's table"


def test_a_counted_error_is_news_for_ten_minutes() -> None:
    fed = Fed()
    once(fed, xids=[XidReport(code=13)])
    after(fed, 100)
    assert fed.lines[-1].findings
    after(fed, 30)
    assert fed.lines[-1].findings == []


def test_a_fallen_card_comes_back_after_a_boot_and_good_samples() -> None:
    fed = Fed()
    after(fed, 2, host=HostSample(boot_id="a"))
    once(fed, xids=[XidReport(code=79)], error="GPU is lost", host=HostSample(boot_id="a"))
    assert first(fed).action is HealthAction.DRAIN
    after(fed, 10, host=HostSample(boot_id="a"))
    assert not first(fed).healthy, "it answers, but nobody has reset it"
    after(fed, 2, host=HostSample(boot_id="b"))
    assert not first(fed).healthy
    once(fed, host=HostSample(boot_id="b"))
    assert first(fed).healthy
    assert fed.lines[-1].findings == []


def test_uncorrectable_errors_keep_work_away_until_the_reset_that_clears_them() -> None:
    fed = Fed()
    after(fed, 3, ecc_uncorrected=0.0)
    assert first(fed).healthy
    once(fed, ecc_uncorrected=2.0)
    assert (first(fed).healthy, first(fed).action) == (False, HealthAction.STOP_PLACING)
    after(fed, 20, ecc_uncorrected=2.0)
    assert not first(fed).healthy
    after(fed, 4, ecc_uncorrected=0.0)
    assert first(fed).healthy


def test_one_low_value_between_two_high_ones_is_no_reset() -> None:
    fed = Fed()
    after(fed, 3, ecc_uncorrected=2.0, energy_j=1000.0)
    for _ in range(6):
        once(fed, ecc_uncorrected=0.0, energy_j=1000.0)
        once(fed, ecc_uncorrected=2.0, energy_j=1000.0)
    assert not first(fed).healthy


def test_an_energy_counter_that_leaps_and_falls_back_is_rubbish_and_no_reset() -> None:
    fed = Fed()
    after(fed, 2, energy_j=1000.0)
    once(fed, xids=[XidReport(code=119)], energy_j=2000.0)
    once(fed, energy_j=4_294_967_295.0)
    after(fed, 10, energy_j=3000.0)
    assert not first(fed).healthy
    after(fed, 4, energy_j=5.0)
    assert first(fed).healthy, "a driver that was loaded anew counts from nothing"


def test_row_remapping_pending_lets_work_go_on_and_failed_asks_for_a_drain() -> None:
    fed = Fed()
    once(fed, remapped_rows=RemappedRows(uncorrectable=1, pending=True))
    assert first(fed).healthy
    assert fed.lines[-1].findings[0].code is FindingCode.ROW_REMAP
    once(fed, remapped_rows=RemappedRows(uncorrectable=1, failed=True))
    assert first(fed).action is HealthAction.DRAIN


def test_the_drivers_own_wish_stands_as_long_as_it_is_told() -> None:
    fed = Fed()
    once(fed, recovery_action="reset_gpu")
    assert not first(fed).healthy
    after(fed, 2)
    assert not first(fed).healthy
    once(fed)
    assert first(fed).healthy


def test_an_operators_undrain_clears_what_waits_for_a_reset() -> None:
    fed = Fed()
    once(fed, xids=[XidReport(code=94)])
    after(fed, 5)
    assert not first(fed).healthy
    command(fed, UndrainNode(node="n00", cluster="c0", ordered_ms=0), "/gpugrid/console")
    once(fed)
    assert first(fed).healthy


def test_an_undrain_of_a_machine_clears_all_nodes_of_its_cards() -> None:
    fed = Fed()
    for node in ("n00", "n00-half"):
        fed.sample(node, gpu(0, xids=[XidReport(code=94)]), machine="n00")
    fed.wall_ms += 5000
    command(fed, UndrainNode(node="n00", cluster="c0", ordered_ms=0), "/gpugrid/console")
    for node in ("n00", "n00-half"):
        fed.sample(node, gpu(0), machine="n00")
    assert [node.gpus[0].placeable for node, _ in fed.handler.nodes()] == [True, True]


def test_an_undrain_of_nobody_is_a_dead_letter_that_says_so_and_one_that_ends_an_early_drain_is_not() -> None:
    fed = Fed()
    once(fed, xids=[XidReport(code=94)])
    early = DrainNode(node="n07", cluster="c0", ordered_ms=0)
    for event in (early, UndrainNode(node="n07", cluster="c0", ordered_ms=1)):
        command(fed, event, "/gpugrid/console")
    assert letters(fed) == []
    command(fed, UndrainNode(node="n0", cluster="c0", ordered_ms=2), "/gpugrid/console")
    (letter,) = letters(fed)
    assert (letter.topic, letter.service, letter.reason) == ("commands", "telemetry", "unknown_node")
    assert "n0" in letter.detail
    once(fed)
    assert not first(fed).healthy, "another node's card is not meant"


def test_overrides_change_the_action_and_nothing_else() -> None:
    policy = Policy(read_overrides(["xid 94=count", "xid 555=drain"]))
    assert policy.rule("xid 94").action is HealthAction.COUNT
    assert policy.rule("xid 94").recovery is Recovery.RESET
    assert policy.rule("xid 555").action is HealthAction.DRAIN
    with pytest.raises(ValueError, match="is no override"):
        read_overrides(["xid 94=explode"])
    with pytest.raises(ValueError, match="is no override"):
        read_overrides(["moon phase=count"])


def test_no_drain_is_ordered_unless_the_policy_says_so() -> None:
    fed = Fed()
    once(fed, xids=[XidReport(code=95)])
    assert orders(fed) == []


def test_a_policy_that_drains_orders_it_once_and_takes_it_back() -> None:
    fed = Fed(TelemetryHandler(catalog(gpus=64), policy=Policy(drains=True)))
    once(fed, recovery_action="reboot_node")
    after(fed, 5, recovery_action="reboot_node")
    after(fed, 4)
    drain, undrain = orders(fed)
    assert isinstance(drain, DrainNode)
    assert (drain.node, drain.cause) == ("n00", "GPU 0: the health policy asks for it")
    assert isinstance(undrain, UndrainNode)


def test_an_operators_drain_is_never_lifted() -> None:
    fed = Fed(TelemetryHandler(catalog(gpus=64), policy=Policy(drains=True)))
    after(fed, 1)
    command(fed, DrainNode(node="n00", cluster="c0", ordered_ms=0), "/gpugrid/console")
    once(fed, recovery_action="reboot_node")
    after(fed, 5)
    assert orders(fed) == []


@pytest.mark.parametrize("errors", [{"xids": [XidReport(code=79)]}, {"ecc_uncorrected": 3.0}, {"error": "GPU is lost"}])
def test_what_keeps_work_away_outlives_a_restart(errors) -> None:
    before = Fed()
    after(before, 3, ecc_uncorrected=0.0)
    once(before, **errors)
    fed = Fed()
    fed.wall_ms = before.wall_ms
    for offset, sent in enumerate(before.out):
        if sent.topic in fed.handler.rebuilt_from:
            record = Record(sent.topic, 0, offset, sent.key, sent.value, sent.headers, fed.wall_ms)
            fed.handler.recover(record)
    once(fed, **({"ecc_uncorrected": 3.0} if "ecc_uncorrected" in errors else {}))
    state = next(fed.handler.nodes())[0]
    assert not state.gpus[0].placeable
    assert state.gpus[1].placeable


def command(fed: Fed, event: DrainNode | UndrainNode, source: str) -> None:
    sent = message(event, key=event.node, id="order", source=source, time_ms=0)
    fed.feed(Record("commands", 0, 0, sent.key, sent.value, sent.headers, fed.wall_ms))


def letters(fed: Fed) -> list[DeadLetter]:
    events = [decode(each.headers, each.value).event for each in fed.out]
    return [event for event in events if isinstance(event, DeadLetter)]


def orders(fed: Fed) -> list[DrainNode | UndrainNode]:
    return [decode(each.headers, each.value).event for each in fed.out if each.topic == "commands"]


def test_the_page_shows_the_table_that_is_in_force() -> None:
    page = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()
    shown = [line for line in page.splitlines() if re.match(r"\| `(xid|ecc|row|recovery|orphan) ", line)]
    assert shown == [
        f"| `{key}` | {rule.action.value} | {rule.recovery.value} | {rule.meaning} | {rule.source} |"
        for key, rule in RULES.items()
    ]
