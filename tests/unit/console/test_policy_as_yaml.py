"""A file of rules as YAML says the same as one in TOML, and its traps are errors."""

from __future__ import annotations

import pytest

from schemas.rules import Rules
from services.console.errors import UsageError
from services.console.policy_file import read_rules

TOML = b"""
fair_share = 0.5
[teams.vision]
weight = 2.0
guaranteed = { h100 = 16 }
each_user.maximum = { h100 = 8 }
users.ann = { maximum = { h100 = 16 } }
[queues.night]
running_max = 10
preemptible = true
[aging]
overdue_s = 86400
"""
YAML = b"""
fair_share: 0.5
teams:
  vision:
    weight: 2.0
    guaranteed: {h100: 16}
    each_user: {maximum: {h100: 8}}
    users:
      ann: {maximum: {h100: 16}}
queues:
  night: {running_max: 10, preemptible: true}
aging: {overdue_s: 86400}
"""


@pytest.mark.parametrize("name", ["rules.yaml", "Rules.YML"])
def test_both_say_the_same(name: str) -> None:
    assert read_rules(YAML, name) == read_rules(TOML, "rules.toml")


def test_an_empty_document_is_no_rules() -> None:
    assert read_rules(b"# nothing\n", "rules.yaml") == Rules()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("teams:\n  vision: {weight: 2}\n  vision: {weight: 3}\n", "line 3: vision is there twice"),
        ("a: &x {h100: 8}\norganisation:\n  maximum: *x\n", "used again by an alias"),
        ("teams: [unclosed\n", "can't be used"),
        ("teams:\n  vision: {wieght: 2}\n", "wieght"),
        ("teams:\n  vision: {weight: heavy}\n", "weight"),
        ("- a\n- b\n", "Expected `object`"),
        ("!!python/object/apply:os.system ['true']\n", "can't be used"),
        ("teams:\n  no: {weight: 2}\n", "rules.yaml"),
        ("\xff", "can't be used"),
    ],
)
def test_every_mistake_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.yaml") as caught:
        read_rules(text.encode("latin-1"), "rules.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
