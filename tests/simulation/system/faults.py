"""What goes wrong in a run, drawn from its seed: which kinds at all, then when and whom.

Owns: the weather (data) and its blowing (calls on the stack). Every seed has some kinds of faults and lacks others, so that
each kind meets the code alone and in company. Refuses: judging. Read next: `life.py`, `machine.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from services.runtime.bus.faults import FaultPlan, TopicFaults, Unknown
from tests.simulation.system.life import SESSION_S, Life, Process
from tests.simulation.system.stack import ALLOCATORS, HANDLED, SPEED, Stack
from tests.simulation.system.world import SPAN_MS, World

SPAN_S = SPAN_MS / 1000 / SPEED
KIND_SHARE = 0.45
"""Of all seeds have a given kind of fault."""
KINDS = (
    "crashes",
    "freezes",
    "rebalances",
    "duplicates",
    "delays",
    "unknown sends",
    "skewed clocks",
    "silent nodes",
    "cut links",
    "power cuts",
    "full disks",
    "bad checkpoints",
    "broken cards",
    "stale forecasts",
    "compaction",
)
RARE_KIND = "silent executors"
RARE_SHARE = 0.04
"""Of all seeds have an executor that is away for so long that starts are given up: such runs take twice as long."""
SILENT_S = (1_150.0, 1_250.0)
"""So much longer than the allocator waits for a first word (900 s of wall time) that what is placed there meanwhile is given up."""
SENDS = (
    ("allocator", "decisions"),
    ("allocator", "placements"),
    ("allocator", "job-status"),
    ("executor", "executions"),
    ("intake", "jobs"),
    ("telemetry", "node-states"),
    ("forecaster", "forecasts"),
)
"""(Who, where to): around the acknowledgement of these it matters most where a process stops."""
ARMED_S = 30.0
"""How long the first one to send there is waited for."""
STEPS_AHEAD_MAX = 25
"""A crash comes at one of the next gates of its victim: at any await, not only while it waits for work."""
CARD_ERRORS = ("Xid 79", "Xid 48", "Xid 13")
DUPLICATED = ("job-events", "demand", "commands", "node-telemetry", "jobs", "executions", "forecasts", "node-states")
DELAYED = (*DUPLICATED, "placements", "job-status", "decisions")


@dataclass(frozen=True, slots=True)
class Gust:
    """One thing that goes wrong: `at_s` wall seconds from the start, for `for_s` where it lasts."""

    at_s: float
    kind: str
    target: str
    for_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Weather:
    """All that goes wrong in one run."""

    kinds: tuple[str, ...]
    bus: FaultPlan
    skews: Mapping[str, tuple[int, int]]
    gusts: tuple[Gust, ...]
    slow_share: float
    mute_share: float

    def skew_of(self, name: str, life: int) -> tuple[int, int]:
        """(domain, wall) milliseconds by which this process's clock is ahead; another one after every restart."""
        return self.skews.get(f"{name}/{life}", self.skews.get(name, (0, 0)))


def weather_of(seed: int, world: World, *, calm: bool = False) -> Weather:
    """The same weather for the same seed."""
    dice = Random(f"{seed}/weather")
    kinds = () if calm else tuple(kind for kind in KINDS if dice.random() < KIND_SHARE)
    forecast = _Forecast(dice, world)
    for kind in kinds:
        getattr(forecast, kind.replace(" ", "_"), lambda: None)()
    rare = Random(f"{seed}/{RARE_KIND}")  # a stream of its own: the other seeds are what they would be without
    if not calm and rare.random() < RARE_SHARE:
        kinds = (*kinds, RARE_KIND)
        at_s, for_s = rare.uniform(2.0, SPAN_S * 0.4), rare.uniform(*SILENT_S)
        forecast.gusts.append(Gust(at_s, "silent executor", rare.choice(world.nodes), for_s))
    bad = "bad checkpoints" in kinds
    return Weather(
        kinds=kinds,
        bus=_bus_plan(seed, kinds, dice),
        skews=_skews(kinds, dice, world),
        gusts=tuple(sorted(forecast.gusts, key=lambda gust: gust.at_s)),
        slow_share=dice.uniform(0.1, 0.8) if bad else 0.0,
        mute_share=dice.uniform(0.0, 0.5) if bad else 0.0,
    )


def _bus_plan(seed: int, kinds: tuple[str, ...], dice: Random) -> FaultPlan:
    duplicates, delays, unknown = ("duplicates" in kinds, "delays" in kinds, "unknown sends" in kinds)
    plans: dict[str, TopicFaults] = {}
    for topic in DELAYED:
        plans[topic] = TopicFaults(
            duplicate_share=dice.uniform(0.02, 0.15) if duplicates and topic in DUPLICATED else 0.0,
            duplicate_delay_s_max=dice.choice([0.5, 20.0, 120.0]),
            send_delay_s_max=dice.choice([0.0, 0.05, 1.0]) if delays else 0.0,
            fetch_share=0.2,
            fetch_delay_s_max=dice.choice([0.0, 0.5, 5.0, 30.0]) if delays else 0.0,
            unknown_before_share=0.02 if unknown else 0.0,
            unknown_after_share=0.02 if unknown else 0.0,
        )
    if "stale forecasts" in kinds:
        plans["forecasts"] = TopicFaults(fetch_share=0.7, fetch_delay_s_max=240.0)
    return FaultPlan(seed=seed, by_topic=plans) if plans else FaultPlan(seed=seed)


def _skews(kinds: tuple[str, ...], dice: Random, world: World) -> dict[str, tuple[int, int]]:
    if "skewed clocks" not in kinds:
        return {}
    names = [*HANDLED, *ALLOCATORS, *(f"machine-{node}" for node in world.nodes)]
    names += [f"agent-{node}" for node in world.nodes]
    skews: dict[str, tuple[int, int]] = {}
    most_ms = dice.choice([2_000, 60_000, 400_000])
    for name in names:
        if dice.random() < 0.5:
            skews[name] = (dice.randint(-most_ms, most_ms), dice.randint(-most_ms // 10, most_ms // 10))
    return skews


class _Forecast:
    """Draws gusts, one method per kind."""

    def __init__(self, dice: Random, world: World) -> None:
        self.gusts: list[Gust] = []
        self._dice = dice
        self._nodes = world.nodes
        self._killable = [*HANDLED, *ALLOCATORS]
        self._killable += [f"{what}-{node}" for node in world.nodes for what in ("executor", "agent")]

    def crashes(self) -> None:
        for _ in range(self._dice.randint(2, 14)):
            target = self._dice.choice(self._killable)
            steps = self._dice.randint(0, STEPS_AHEAD_MAX)
            down_s = self._dice.choice([0.0, 0.0, 3.0, 30.0])
            self._add("crash", target, down_s, f"{steps}")
        for _ in range(self._dice.randint(0, 6)):
            what, topic = self._dice.choice(SENDS)
            targets = [name for name in self._killable if name.startswith(what)]
            self._add(
                "crash on send", self._dice.choice(targets), 30.0, self._dice.choice(["before", "after"]) + " " + topic
            )

    def freezes(self) -> None:
        for _ in range(self._dice.randint(1, 6)):
            target = self._dice.choice([*ALLOCATORS, *self._killable])
            for_s = self._dice.choice([2.0, 12.0, 40.0, 100.0])
            self._add("freeze", target, for_s, f"{self._dice.randint(0, STEPS_AHEAD_MAX)}")
        for _ in range(self._dice.randint(0, 3)):
            topic = self._dice.choice(["decisions", "decisions", "placements", "job-status"])
            self._add("freeze on send", "allocator", self._dice.choice([12.0, 40.0]), f"before {topic}")
        for _ in range(self._dice.randint(0, 2)):
            what, topic = self._dice.choice(SENDS)
            self._add("freeze on send", what, self._dice.choice([12.0, 40.0]), f"before {topic}")

    def rebalances(self) -> None:
        for _ in range(self._dice.randint(1, 6)):
            self._add("expel", self._dice.choice([*HANDLED, *ALLOCATORS, *ALLOCATORS]))

    def unknown_sends(self) -> None:
        for _ in range(self._dice.randint(1, 6)):
            topic = self._dice.choice(["decisions", "placements", "executions", "job-status", "jobs", "snapshots"])
            self._add("unknown send", topic, detail=self._dice.choice([how.value for how in Unknown]))

    def silent_nodes(self) -> None:
        for _ in range(self._dice.randint(1, 3)):
            self._add("silence", self._dice.choice(self._nodes), self._dice.choice([20.0, 50.0, 90.0, 200.0]))

    def cut_links(self) -> None:
        for _ in range(self._dice.randint(1, 3)):
            self._add("cut link", self._dice.choice(self._nodes), self._dice.choice([5.0, 30.0, 90.0, 200.0]))

    def power_cuts(self) -> None:
        for _ in range(self._dice.randint(1, 2)):
            self._add("power cut", self._dice.choice(self._nodes), self._dice.choice([3.0, 40.0, 100.0, 200.0]))

    def full_disks(self) -> None:
        for _ in range(self._dice.randint(1, 2)):
            self._add("full disk", self._dice.choice(self._nodes), self._dice.choice([2.0, 20.0, 60.0]))

    def broken_cards(self) -> None:
        for _ in range(self._dice.randint(1, 3)):
            detail = f"{self._dice.randrange(4)}/{self._dice.choice(CARD_ERRORS)}"
            self._add("broken card", self._dice.choice(self._nodes), self._dice.choice([20.0, 100.0]), detail)

    def stale_forecasts(self) -> None:
        if self._dice.random() < 0.5:
            self._add("crash", "forecaster", self._dice.choice([60.0, 240.0]), "0")

    def compaction(self) -> None:
        for _ in range(self._dice.randint(1, 5)):
            self._add("compaction", self._dice.choice(["node-states", "forecasts", "snapshots"]))

    def _add(self, kind: str, target: str, for_s: float = 0.0, detail: str = "") -> None:
        at_s = self._dice.uniform(2.0, SPAN_S * 0.92)
        self.gusts.append(Gust(at_s, kind, target, for_s, detail))


class Faults:
    """Carries a weather out on a stack."""

    def __init__(self, stack: Stack, weather: Weather) -> None:
        self._stack = stack
        self._weather = weather
        self._lasting: list[asyncio.Task[None]] = []
        for machine in stack.machines.values():
            machine.slow_share, machine.mute_share = weather.slow_share, weather.mute_share

    async def blow(self) -> None:
        """Everything at its time; returns after the last one has passed."""
        clock = self._stack.clock
        begun_s = clock.wall_s()
        try:
            for gust in self._weather.gusts:
                await clock.sleep_wall(max(0.0, begun_s + gust.at_s - clock.wall_s()))
                lasts = f" for {gust.for_s:.0f} s" if gust.for_s else ""
                self._stack.tell("weather", f"{gust.kind}: {gust.target}{lasts} {gust.detail}".rstrip())
                act = getattr(self, "_" + gust.kind.replace(" ", "_"))
                self._lasting.append(asyncio.ensure_future(act(gust)))
            await asyncio.gather(*self._lasting)
        finally:
            for task in self._lasting:
                task.cancel()

    def calm_down(self) -> None:
        """From here on nothing goes wrong; what is on its way arrives."""
        self._stack.bus.heal()
        for machine in self._stack.machines.values():
            machine.slow_share = machine.mute_share = 0.0

    # --- one method per kind of gust

    async def _crash(self, gust: Gust) -> None:
        process = self._process(gust.target)
        if process.life is None:
            return
        if gust.for_s:
            process.hold_down()
            await self._stack.clock.sleep_wall(gust.for_s)
            process.let_up()
        else:
            process.life.die_at = process.life.steps + int(gust.detail)

    async def _crash_on_send(self, gust: Gust) -> None:
        life = self._process(gust.target).life
        if life is not None:
            life.die_on = gust.detail

    async def _freeze(self, gust: Gust) -> None:
        life = self._process(gust.target).life
        if life is not None:
            life.freeze_at = life.steps + int(gust.detail)
            await self._stand_still(gust, [life])

    async def _freeze_on_send(self, gust: Gust) -> None:
        """Whoever of that kind sends there first."""
        found = [process.life for name, process in self._stack.processes.items() if name.startswith(gust.target)]
        lives = [life for life in found if life is not None]
        for life in lives:
            life.freeze_on = gust.detail
        await self._stand_still(gust, lives)

    async def _stand_still(self, gust: Gust, lives: list[Life]) -> None:
        """The first of these that reaches its gate is frozen for the gust's time; the others go on."""
        waits = [asyncio.ensure_future(life.frozen.wait()) for life in lives]
        if not waits:
            return  # all of that kind are dead just now
        await asyncio.wait(waits, timeout=ARMED_S, return_when=asyncio.FIRST_COMPLETED)
        for wait, life in zip(waits, lives, strict=True):
            wait.cancel()
            life.freeze_at, life.freeze_on = None, ""
        still = [life for life in lives if life.frozen.is_set()]
        if not still:
            return
        await self._stack.clock.sleep_wall(min(gust.for_s, SESSION_S))
        if gust.for_s > SESSION_S:
            for life in still:
                life.expel()
            await self._stack.clock.sleep_wall(gust.for_s - SESSION_S)
        for life in still:
            life.thaw()

    async def _expel(self, gust: Gust) -> None:
        life = self._process(gust.target).life
        if life is not None:
            life.expel()

    async def _unknown_send(self, gust: Gust) -> None:
        self._stack.bus.fail_next_send(gust.target, Unknown(gust.detail))

    async def _silence(self, gust: Gust) -> None:
        """The agent dies, everything else on the node goes on."""
        await self._down([f"agent-{gust.target}"], gust.for_s)

    async def _silent_executor(self, gust: Gust) -> None:
        """The executor is away, its agent and what runs go on: that of a node with an application, if there is one."""
        serving = [name for name in self._stack.world.nodes if self._stack.machines[name].serves()]
        await self._down([f"executor-{serving[0] if serving else gust.target}"], gust.for_s)

    async def _cut_link(self, gust: Gust) -> None:
        """The node works, but nobody hears of it, and it of nobody."""
        lives = [self._process(f"{what}-{gust.target}").life for what in ("agent", "executor")]
        for life in lives:
            if life is not None:
                life.cut()
        await self._stack.clock.sleep_wall(gust.for_s)
        for life in lives:
            if life is not None:
                life.link()

    async def _power_cut(self, gust: Gust) -> None:
        machines = self._stack.on(gust.target)
        if not machines[0].powered:
            return
        names = [f"{what}-{gust.target}" for what in ("executor", "agent")]
        for name in names:
            self._process(name).hold_down()
        for machine in machines:
            machine.cut_power()
        if len(machines) > 1 and self._stack.cards is not None:
            self._stack.cards.lose_instances()
        await self._stack.clock.sleep_wall(gust.for_s)
        for machine in machines:
            machine.restore_power()
        for name in names:
            self._process(name).let_up()

    async def _full_disk(self, gust: Gust) -> None:
        for machine in self._stack.on(gust.target):
            machine.disk_full = True
        await self._stack.clock.sleep_wall(gust.for_s)
        for machine in self._stack.on(gust.target):
            machine.disk_full = False

    async def _broken_card(self, gust: Gust) -> None:
        gpu, _, error = gust.detail.partition("/")
        errors = self._stack.sources[gust.target].errors
        errors[gust.target, int(gpu)] = error
        await self._stack.clock.sleep_wall(gust.for_s)
        errors.pop((gust.target, int(gpu)), None)

    async def _compaction(self, gust: Gust) -> None:
        self._stack.bus.compact(gust.target)

    async def _down(self, names: list[str], for_s: float) -> None:
        for name in names:
            self._process(name).hold_down()
        await self._stack.clock.sleep_wall(for_s)
        for name in names:
            self._process(name).let_up()

    def _process(self, name: str) -> Process:
        return self._stack.processes[name]
