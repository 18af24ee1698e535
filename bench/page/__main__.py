"""`python -m bench.page`: 1,000 GPUs and 10,000 waiting jobs on the page, in a real browser; writes bench/results/page.json.

Ratios are within one run: the worst picture there is to draw (every cell another owner) against the made-up cluster's own.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.pipeline.facts import Facts, facts
from services.console.page.access import Access
from services.console.page.board import TOPICS, Board
from services.console.page.hub import Hub
from services.console.page.server import PageServer
from services.console.page.shadow import measured, observed_days
from services.console.read import in_time
from tests.page_stage import NOW_MS, Stage, crowd

RESULT = Path(__file__).parents[1] / "results" / "page.json"
PAINTS = 41
QUIET_S = 20.0
"""Long enough for every periodic part of the page to run twice."""
EVERY_CELL_ANOTHER_OWNER = """() => {
  const { store } = gpugrid, now = store.now(), step = 900000, blocks = [];
  for (const [name] of store.nodes) for (let gpu = 0; gpu < 8; gpu++) for (let at = -24; at < 72; at++) {
    const owner = `${name}-${gpu}-${at}`, from = now + at * step;
    if (at < 0) store.blocks.set(owner, [owner, name, [gpu], from, from + step, null, 1, 2]);
    else blocks.push([owner, name, gpu, from, from + step, 1, 0]);
  }
  store.sections.plan = { made: now, step_ms: step, blocks };
  store.tell(new Set(["blocks", "plan"]));
}"""
PAINT = """(paints) => {
  const view = gpugrid.view, times = [];
  view.paint();
  for (let n = 0; n < paints; n++) { const at = performance.now(); view.paint(); times.push(performance.now() - at); }
  times.sort((a, b) => a - b);
  return { rectangles: view.map.rects.length, best_ms: times[0], median_ms: times[paints >> 1] };
}"""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time of the server's parts. `quiet_share`: of a core, with nothing changing and one browser."""

    records: int
    fold_s: float
    snapshot_ms: float
    snapshot_bytes: int
    snapshot_gzip_bytes: int
    shadow_ms: float
    quiet_share: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`draw_own`: the made-up cluster; `draw_worst`: 96 steps, every cell another owner; `ratio`: their medians."""

    facts: Facts
    gpus: int
    waiting: int
    server: Server
    draw_own: dict[str, float]
    draw_worst: dict[str, float]
    ratio: float


def main() -> int:
    """2 where there is no browser."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--nodes", type=int, default=125, help="nodes of 8 GPUs")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("No browser: install chromium (apt-get install chromium).")
        return 2
    about = facts()
    server, own, worst = asyncio.run(_measure(asked.nodes, asked.waiting, chromium))
    result = Result(
        facts=about,
        gpus=8 * asked.nodes,
        waiting=asked.waiting,
        server=server,
        draw_own=own,
        draw_worst=worst,
        ratio=round(worst["median_ms"] / max(own["median_ms"], 0.1), 1),
    )
    asked.out.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    print(f"worst picture {worst['median_ms']:.0f} ms (best {worst['best_ms']:.0f}); {asked.out}")
    return 0


async def _measure(nodes: int, waiting: int, chromium: str) -> tuple[Server, dict[str, float], dict[str, float]]:
    from playwright.async_api import async_playwright

    stage = Stage()
    await crowd(stage, nodes=nodes, waiting=waiting)
    figures = _folded(stage)
    page_server = PageServer(stage.session, Access("bench"), host="127.0.0.1", port=0, planning=False)
    await page_server.start()
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()
            await page.goto(f"http://127.0.0.1:{page_server.port}/")
            await _until(page, f"() => window.gpugrid?.view?.map.rows === {8 * nodes}")
            begun_s, wall_s = time.process_time(), time.monotonic()
            await asyncio.sleep(QUIET_S)
            share = (time.process_time() - begun_s) / (time.monotonic() - wall_s)
            own = await page.evaluate(PAINT, PAINTS)
            await page.evaluate(EVERY_CELL_ANOTHER_OWNER)
            await _until(page, f"() => gpugrid.view.map.rects.length > {90 * 8 * nodes}")
            worst = await page.evaluate(PAINT, PAINTS)
            await browser.close()
    finally:
        await page_server.stop()
    return Server(**figures, quiet_share=round(share, 4)), own, worst


def _folded(stage: Stage) -> dict[str, Any]:
    records = in_time([record for topic in TOPICS for record in stage.bus.records(topic)])
    hub, board = Hub("bench"), Board()
    begun_s = time.process_time()
    for record in records:
        board.fold(record)
    folded_s = time.process_time() - begun_s
    hub.board = board
    begun_s = time.process_time()
    body = hub.snapshot(NOW_MS)
    snapshot_s = time.process_time() - begun_s
    begun_s = time.process_time()
    measured(observed_days(board, NOW_MS))
    shadow_s = time.process_time() - begun_s
    return {
        "records": len(records),
        "fold_s": round(folded_s, 3),
        "snapshot_ms": round(snapshot_s * 1000, 1),
        "snapshot_bytes": len(body),
        "snapshot_gzip_bytes": len(gzip.compress(body, 3)),
        "shadow_ms": round(shadow_s * 1000, 1),
    }


async def _until(page: Any, condition: str) -> None:
    """Ask until it is true: the page's own policy forbids playwright's polling."""
    for _ in range(600):
        if await page.evaluate(condition):
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"not within a minute: {condition}")


if __name__ == "__main__":
    raise SystemExit(main())
