"""Keeps the hub current from the bus: reads the topics to their end, then as they grow; starts over after the broker was away.

Owns reading and the rhythm of everything that is computed beside it (plan, shadow, latencies). Refuses HTTP (`server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import msgspec

from schemas.records import Record
from schemas.status import JobState
from services.console.diagnosis import diagnose_world
from services.console.errors import ConsoleError
from services.console.page.board import TOPICS, Board
from services.console.page.hub import Hub
from services.console.page.planned import Planner
from services.console.page.shadow import measured, observed_days
from services.console.read import newest_per_key, partitions_of
from services.console.sentences import Explanation
from services.console.session import Session
from services.runtime.bus.port import Bus, BusError, Consumer

CLIENT_ID = "gpugrid-page"
COMPACTED = ("job-status", "placements", "node-states", "forecasts")
HISTORY_OFFSETS_MAX = 300_000
"""Newest offsets read per partition at the start: days of a busy cluster, read in seconds; older ones are not needed for a day's
picture. Compacted topics are read whole, they hold the present."""
POLL_RECORDS_MAX = 5_000
POLL_WAIT_S = 0.1
FOLD_AT_ONCE = 500
"""Records folded before the loop serves browsers again: some 50 ms."""
DELTA_PERIOD_S = 0.4
"""People don't see more than two changes a second, and browsers draw each."""
PRUNE_PERIOD_S = 5.0
PLAN_PERIOD_S = 2.0
SHADOW_PERIOD_S = 8.0
LATENCY_PERIOD_S = 3.0
DIAGNOSIS_PERIOD_S = 3.0
BROKER_PERIOD_S = 2.0
BROKER_WAIT_S = 2.0
"""A broker that does not take a connection by then is as good as away."""
LATENCY_WINDOW_MS = 15 * 60_000
REST_FACTOR = 8.0
"""A computation rests this many times as long as it took: the page never takes more than about a tenth of a core for each."""
FAILED_REST_S = 30.0
"""After a mistake of ours (or a log of other code): it is likely to happen again, and each time fills the log."""
RETRY_S = 2.0

log = logging.getLogger(__name__)


class Follower:
    """`run` until cancelled. `lost`: why the topics can't be read now, "" while they are."""

    def __init__(self, session: Session, hub: Hub, *, planning: bool) -> None:
        self._session = session
        self._hub = hub
        self._planning = planning
        self._clock = session.clock()
        self._planners: dict[str, Planner] = {}
        self.lost = "not read yet"
        self.ready = asyncio.Event()
        self.on_delta: Callable[[bytes], None] = lambda delta: None
        self.on_restart: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (BusError, ConsoleError, OSError) as error:
                self.lost = str(error) or type(error).__name__
                log.warning("the topics can't be read (%s); trying again", self.lost)
            await self._clock.sleep_wall(RETRY_S)

    async def _follow(self) -> None:
        bus = self._session.bus()
        board = Board()
        async with _started(bus) as reader:
            await self._catch_up(reader, board)
            self._planners = {}
            self._hub.restart(board, secrets.token_hex(8))
            self._refresh_now(board)
            self.lost = ""
            self.ready.set()
            self.on_restart()
            tasks = [
                asyncio.create_task(self._grow(reader, board)),
                asyncio.create_task(self._deltas(board)),
                asyncio.create_task(self._watch_broker()),
                asyncio.create_task(self._every(SHADOW_PERIOD_S, lambda: self._shadow(board))),
                asyncio.create_task(self._every(PLAN_PERIOD_S, lambda: self._plan(bus, board))),
                asyncio.create_task(self._every(LATENCY_PERIOD_S, lambda: self._latency(board))),
                asyncio.create_task(self._every(DIAGNOSIS_PERIOD_S, lambda: self._diagnosis(board))),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _catch_up(self, reader: Consumer, board: Board) -> None:
        """Everything up to now. Of compacted topics only the newest of each key is folded; jobs come first."""
        partitions = partitions_of(TOPICS)
        ends = await reader.end_offsets(partitions)
        begins = await reader.beginning_offsets(partitions)
        for partition in partitions:
            if partition[0] not in COMPACTED:
                await reader.seek(partition, max(begins[partition], ends[partition] - HISTORY_OFFSETS_MAX))
        found: dict[str, list[Record]] = {topic: [] for topic in TOPICS}
        later: list[Record] = []
        open_ends = {one: end for one, end in ends.items() if end > begins[one]}
        while open_ends:
            for record in await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_WAIT_S):
                known = record.offset < ends[record.topic, record.partition]
                (found[record.topic] if known else later).append(record)
            for partition in list(open_ends):
                if await reader.position(partition) >= open_ends[partition]:
                    del open_ends[partition]
        for topic in ("jobs", *(name for name in TOPICS if name != "jobs")):
            records = found[topic]
            if topic in COMPACTED and topic != "forecasts":
                records = list(newest_per_key(records).values())
            await self._fold(board, sorted(records, key=lambda one: (one.partition, one.offset)))
        await self._fold(board, later)
        board.prune(self.now_ms())

    async def _fold(self, board: Board, records: list[Record]) -> None:
        for first in range(0, len(records), FOLD_AT_ONCE):
            for record in records[first : first + FOLD_AT_ONCE]:
                decision = board.fold(record)
                if decision is not None and decision.cluster in self._planners:
                    self._planners[decision.cluster].take(decision)
            await asyncio.sleep(0)

    async def _grow(self, reader: Consumer, board: Board) -> None:
        while True:
            await self._fold(board, await reader.poll(max_records=POLL_RECORDS_MAX, timeout_s=POLL_WAIT_S))

    async def _watch_broker(self) -> None:
        """The reader waits for a lost broker in silence; people are to know that what they see stands still."""
        if self._session.make_bus is not None:
            await asyncio.Event().wait()
        addresses = [one.strip().rpartition(":") for one in self._session.address().split(",")]
        while True:
            await self._clock.sleep_wall(BROKER_PERIOD_S)
            answers = [await _answers(host, int(port)) for host, _, port in addresses]
            self.lost = "" if any(answers) else "the broker does not answer"

    async def _deltas(self, board: Board) -> None:
        pruned_s = self._clock.wall_s()
        while True:
            await self._clock.sleep_wall(DELTA_PERIOD_S)
            if self._clock.wall_s() - pruned_s > PRUNE_PERIOD_S:
                board.prune(self.now_ms())
                pruned_s = self._clock.wall_s()
            self._refresh_now(board)
            delta = self._hub.advance(self.now_ms())
            if delta is not None:
                self.on_delta(delta)

    def _refresh_now(self, board: Board) -> None:
        newest = max((one.sequence for one in board.newest.values()), default=0)
        self._hub.put("log", {"decisions": board.decisions, "sequence": newest, "unreadable": board.world.unreadable})

    async def _every(self, period_s: float, work: Callable[[], Any]) -> None:
        """Do it again and again, with rests. What fails is logged and tried again: one broken part leaves the rest alone."""
        while True:
            begun_s = self._clock.wall_s()
            try:
                await work()
            except (BusError, ConsoleError):
                raise
            except Exception:
                log.exception("a part of the page could not be computed; trying again in %.0f s", FAILED_REST_S)
                await self._clock.sleep_wall(FAILED_REST_S)
            took_s = self._clock.wall_s() - begun_s
            await self._clock.sleep_wall(max(period_s, took_s * REST_FACTOR))

    async def _shadow(self, board: Board) -> None:
        days = observed_days(board, self.now_ms())
        self._hub.put("shadow", await asyncio.to_thread(measured, days))

    async def _latency(self, board: Board) -> None:
        hops = board.marks.latencies(self._clock.wall_ms() - LATENCY_WINDOW_MS)
        self._hub.put("latency", {"window_ms": LATENCY_WINDOW_MS, "hops": [msgspec.to_builtins(one) for one in hops]})

    async def _diagnosis(self, board: Board) -> None:
        """Of the pool with the longest queue."""
        found = diagnose_world(board.world, self.now_ms())
        self._hub.put("diagnosis", asdict(max(found, key=lambda one: one.numbers["waiting"])))

    # --- the plan ahead, and the state it is made from

    async def placed(self, explanation: Explanation) -> Explanation:
        """With what the allocator's state says about a waiting job."""
        view = self._hub.board.world.jobs.get(explanation.job_id)
        planner = None if view is None else self._planners.get(view.cluster or "")
        if planner is None or explanation.state != JobState.QUEUED.value or (view is not None and view.is_application):
            return explanation
        return await asyncio.to_thread(planner.placed, explanation, self.now_ms())

    async def _plan(self, bus: Bus, board: Board) -> None:
        if self._planning:
            for cluster in sorted({node.cluster for node in board.world.nodes.values()} - self._planners.keys()):
                await self._load_planner(bus, board, cluster)
        plans = []
        for planner in self._planners.values():
            plan = await asyncio.to_thread(planner.plan, self.now_ms(), self._clock.wall_ms())
            if plan is not None:
                plans.append(plan)
        if plans:
            self._hub.put(
                "plan",
                {
                    "made": max(plan["made"] for plan in plans),
                    "step_ms": plans[0]["step_ms"],
                    "blocks": [block for plan in plans for block in plan["blocks"]],
                    "ends": {name: end_ms for plan in plans for name, end_ms in plan["ends"].items()},
                    "left_out": sum(plan["left_out"] for plan in plans),
                },
            )

    async def _load_planner(self, bus: Bus, board: Board, cluster: str) -> None:
        """A copy of the cluster's state, from its snapshot and the log."""
        from services.allocator.shell.log import load
        from services.console.settings import settings_of

        planner = self._planners[cluster] = Planner()
        try:
            settings = settings_of(self._session, cluster)
            partition = next(
                board.world.node_partition[name] for name, node in board.world.nodes.items() if node.cluster == cluster
            )
            loaded = await load(bus, cluster, partition, settings.policy.step_ms, CLIENT_ID)
            planner.begin(loaded.state, settings)
        except BaseException:
            del self._planners[cluster]
            raise


async def _answers(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), BROKER_WAIT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


@contextlib.asynccontextmanager
async def _started(bus: Bus) -> AsyncIterator[Consumer]:
    reader = bus.reader(CLIENT_ID, partitions_of(TOPICS))
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()
