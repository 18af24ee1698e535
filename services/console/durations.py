"""Durations and moments as people write and read them: `2h30m`, `in 35 min`, `14:05`. Pure; UTC unless told otherwise."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "min": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|m|s)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration_s(text: str) -> float:
    """Seconds of `2h`, `1d12h`, `90m`, `45s` or a plain number of seconds. ValueError says what is understood."""
    trimmed = text.strip().lower().replace(" ", "")
    try:
        seconds = float(trimmed)
    except ValueError:
        if not trimmed or _PART.sub("", trimmed):
            raise ValueError(f"{text!r} is no duration; write 90s, 30m, 2h, 1d12h or a number of seconds") from None
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(trimmed))
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{text!r} must be longer than nothing and finite")
    return seconds


def parse_moment_ms(text: str, now_ms: int, *, ahead: bool = False) -> int:
    """Epoch milliseconds of `7d` (so long ago; `ahead`: from now) or of a date, UTC unless it says otherwise. ValueError as above."""
    try:
        return now_ms + (1 if ahead else -1) * round(parse_duration_s(text) * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 24h, 7d, 2026-01-31 or 2026-01-31T08:00.") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_text(seconds: float) -> str:
    """Two units at most: `45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`, `7 d`."""
    if seconds < 0:
        return "-" + duration_text(-seconds)
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 2 * 3_600:
        return f"{round(whole / 60)} min"
    if whole < 2 * 86_400:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"
    days, hours = divmod(round(whole / 3_600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def moment_text(time_ms: int, now_ms: int, zone: tzinfo = UTC) -> str:
    """Clock time, with the date unless it is the same day as now."""
    moment = (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(zone)
    today = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(zone)
    if moment.date() == today.date():
        return moment.strftime("%H:%M:%S") if abs(time_ms - now_ms) < 120_000 else moment.strftime("%H:%M")
    return moment.strftime("%d %b %H:%M")


def from_now_text(time_ms: int, now_ms: int) -> str:
    """`now`, `in 35 min` or `12 s ago`."""
    away_s = (time_ms - now_ms) / 1000
    if abs(away_s) < 1:
        return "now"
    return f"in {duration_text(away_s)}" if away_s > 0 else f"{duration_text(-away_s)} ago"
