"""From a load series to a real-time application: how much one GPU serves, its floor, peak, headroom and priority.

Owns the stated numbers per application. Missing windows are filled here, before anything else sees them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.jobs import ApplicationSpec
from services.replay.core.day import DayApp
from services.replay.core.trace import LoadSeries, filled

NOMINAL_GPUS = 64
"""`per_gpu` below is meant for a pool of this size; in a smaller or larger one a GPU serves proportionally more or less of
the same load, so that the applications' share of the pool stays."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Profile:
    """`per_gpu`: requests/s one GPU serves. Together the three peak at about 40–45 % of the pool."""

    app_id: str
    team: str
    priority: int
    per_gpu: float


PROFILES = (
    Profile("chat", "serving", 5, 72.0),
    Profile("assistant", "serving", 4, 10.0),
    Profile("documents", "search", 3, 11.5),
)
FLOOR_SHARE = 0.15
"""Of the highest load ever seen before the day: what an application always keeps."""
PEAK_SHARE = 1.25
"""Of the same: the most it may ever ask for."""
QUANTILE = 0.9
HEADROOM = 0.1
SWITCH_SHARE = 1 / 16
"""Of the pool, per grid step and application."""


def make_app(profile: Profile, series: LoadSeries, load_day: int, hours: float, gpus: int) -> DayApp:
    """The application of one series on day `load_day` of it, in a pool of `gpus`."""
    per_day = DAY_S // series.window_s
    first = load_day * per_day
    windows = math.ceil(hours * 3600 / series.window_s)
    loads = filled(series.loads)
    if first + windows > len(loads) or first < per_day:
        raise ValueError(f"{series.app_id}: day {load_day} is not in the series with a day of history before it")
    per_gpu = profile.per_gpu * NOMINAL_GPUS / gpus
    seen = max(loads[:first]) / per_gpu
    spec = ApplicationSpec(
        team=profile.team,
        user=f"{profile.team}-oncall",
        priority=profile.priority,
        floor_gpus=max(1, math.floor(seen * FLOOR_SHARE)),
        peak_gpus=max(2, math.ceil(seen * PEAK_SHARE)),
        switch_max=max(2, math.floor(gpus * SWITCH_SHARE)),
        quantile=QUANTILE,
        headroom=HEADROOM,
        template="simulated",
    )
    return DayApp(
        app_id=profile.app_id,
        spec=spec,
        per_gpu=per_gpu,
        window_s=series.window_s,
        history=loads[:first],
        loads=loads[first : first + windows],
    )
