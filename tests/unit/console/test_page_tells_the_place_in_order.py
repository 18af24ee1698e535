"""The page's view of a waiting job says what `gpugrid why` says: the same sentence, position, order and lines, from the same functions."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from schemas.commands import ChangeRules
from schemas.rules import Aging, Rules, TeamRules
from services.console.page.access import Access
from services.console.page.server import PageServer
from tests import build
from tests.unit.console.console_rig import Rig

DEADLINE_S = 60.0
HOUR_MS = 3_600_000


def ruled() -> Rig:
    """`first` runs on all there is; `bulk` came first and declares more, but `second` is inside its team's guarantee."""
    teams = {"red": TeamRules(guaranteed={"h100": 8})}
    rules = Rules(version=1, fair_share=0.5, teams=teams, aging=Aging(overdue_s=86_400.0))
    rig = Rig().give(build.node("n00", order=0))
    rig.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=build.START_MS))
    rig.give(build.accepted("first", 8), build.forecast("first", {8: 40 * 3600}))
    rig.give(build.started("first", "n00", build.START_MS))
    for job_id, team, priority in (("bulk", "blue", 9), ("second", "red", 1)):
        rig.give(build.accepted(job_id, 8, team=team, priority=priority), build.forecast(job_id, {8: 7200}))
    return rig


async def on_the_page(rig: Rig, job_id: str) -> dict[str, Any]:
    """The answer once the page has the allocator's state, which it loads beside the topics."""
    server = PageServer(rig.session, Access("secret"), host="127.0.0.1", port=0, planning=True)
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:
            await server.follower.ready.wait()
            while True:
                answer = await (await client.get(f"/api/jobs/{job_id}")).json()
                if answer["explanation"]["order"] is not None:
                    explanation: dict[str, Any] = answer["explanation"]
                    return explanation
                await asyncio.sleep(0)
    finally:
        await server.stop()


def test_the_page_and_the_command_say_the_same() -> None:
    rig = ruled()
    rig.clock.at_ms += 3 * HOUR_MS
    for job_id, position in (("second", 1), ("bulk", 2)):
        told = rig.json("why", job_id)
        shown = asyncio.run(on_the_page(rig, job_id))
        assert shown["order"] == told["order"]
        assert shown["position"] == told["position"] == position
        assert shown["sentence"] == told["sentence"]
        assert shown["lines"] == told["lines"]
        assert shown["would_help"] == told["would_help"]
        assert any(line.startswith("It counts with priority") for line in shown["lines"])
        assert f"Position {position} in the queue." in shown["sentence"]
