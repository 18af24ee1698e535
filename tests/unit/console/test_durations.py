"""People's durations and moments, both ways."""

from __future__ import annotations

import pytest

from services.console.durations import duration_text, from_now_text, moment_text, parse_duration_s

NOON_MS = 1_800_014_400_000  # 15 Jan 2027 12:00 UTC


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("30min", 1800),
        ("2h", 7200),
        ("1d12h", 129_600),
        ("1.5h", 5400),
        ("2 h 5 m", 7500),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "2x", "h2", "-5", "0", "0h", "inf", "nan", "1e400"])
def test_what_is_no_duration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"no duration|longer than nothing"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"), (45, "45 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (11_100, "3 h 05 min"),
        (86_400, "24 h"), (187_200, "2 d 4 h"), (604_800, "7 d"), (-45, "-45 s"),
    ],
)  # fmt: skip
def test_durations_are_written_with_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_moments_show_the_date_only_on_other_days() -> None:
    assert moment_text(NOON_MS + 3_600_000, NOON_MS) == "13:00"
    assert moment_text(NOON_MS + 30_000, NOON_MS) == "12:00:30"
    assert moment_text(NOON_MS + 86_400_000, NOON_MS) == "16 Jan 12:00"


def test_distance_from_now_has_a_direction() -> None:
    assert from_now_text(NOON_MS + 2_100_000, NOON_MS) == "in 35 min"
    assert from_now_text(NOON_MS - 12_000, NOON_MS) == "12 s ago"
    assert from_now_text(NOON_MS + 400, NOON_MS) == "now"
