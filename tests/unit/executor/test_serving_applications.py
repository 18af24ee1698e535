"""Real application processes: each kind of probe, and letting go of GPUs by file and by socket."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from schemas.jobs import ProbeKind, Readiness
from schemas.placements import Assignment, Desired
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.port import Order
from services.executor.shell.drivers.process import ProcessDriver, ProcessRun
from services.runtime.clock import WallClock

PATIENCE_S = 30.0
SERVER = """
import http.server, os, pathlib, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        well = self.path == "/health" and pathlib.Path({well!r}).exists()
        self.send_response(200 if well else 503); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["GPUGRID_PORT"])), Answer).serve_forever()
"""
FOLLOWER = """
import json, os, pathlib, socket, time
mine = pathlib.Path(os.environ["GPUGRID_GPUS"])
seen = mine.read_text()
pathlib.Path({up!r}).touch()
while True:
    now = mine.read_text()
    if now != seen:
        seen = now
        if {by_socket}:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(os.environ["GPUGRID_SOCKET"])
                line.sendall(json.dumps({{"gpus": now}}).encode() + b"\\n")
        else:
            pathlib.Path(os.environ["GPUGRID_GPUS_ANSWER"]).write_text(now)
    time.sleep(0.01)
"""


@pytest.fixture
def driver(tmp_path: Path) -> ProcessDriver:
    return ProcessDriver(WallClock(), tmp_path / "run", Site(nodes=("n00",)), grace_s=0.5)


def app(code: str, readiness: Readiness | None = None) -> Order:
    command = [sys.executable, "-c", code]
    return Order(
        "n00",
        Assignment(
            job_id="app",
            attempt=1,
            desired=Desired.RUN,
            gpus=[0, 1],
            application=True,
            command=command,
            readiness=readiness,
        ),
    )


async def serving(run: ProcessRun, wanted: bool = True) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while await run.serves() is not wanted:
        assert time.monotonic() < deadline, f"never served: {wanted}"
        await asyncio.sleep(0.02)


async def ended(run: ProcessRun) -> None:
    waiting = asyncio.ensure_future(run.ended())
    await run.stop()
    await waiting


async def test_http_serves_with_a_2xx_only_and_also_for_a_successor(driver, tmp_path):
    well = tmp_path / "well"
    order = app(SERVER.format(well=str(well)), Readiness(kind=ProbeKind.HTTP, path="/health"))
    run = await driver.start(order)
    assert not await run.serves()
    well.touch()
    await serving(run)
    well.unlink()
    await serving(run, False)
    well.touch()
    adopted = await ProcessDriver(WallClock(), tmp_path / "run", Site(nodes=("n00",))).adopt(order, run.facts)
    assert adopted is not None
    await serving(adopted)
    await ended(run)
    assert not await run.serves()


async def test_tcp_serves_once_somebody_listens_on_the_given_port(driver, tmp_path):
    run = await driver.start(app(SERVER.format(well="/nowhere"), Readiness(kind=ProbeKind.TCP)))
    await serving(run)
    await ended(run)
    assert not await run.serves()


async def test_a_file_in_the_run_folder_serves(driver):
    order = app("import time; time.sleep(600)", Readiness(kind=ProbeKind.FILE, path="ready"))
    run = await driver.start(order)
    assert not await run.serves()
    (driver.folder_of(order) / "ready").touch()
    assert await run.serves()
    await ended(run)


async def test_without_a_probe_it_serves(driver):
    run = await driver.start(app("import time; time.sleep(600)"))
    assert await run.serves()
    await ended(run)


@pytest.mark.parametrize("by_socket", [False, True])
async def test_gpus_are_let_go_when_the_application_says_so(driver, tmp_path, by_socket):
    up = tmp_path / "up"
    run = await driver.start(app(FOLLOWER.format(up=str(up), by_socket=by_socket)))
    deadline = time.monotonic() + PATIENCE_S
    while not up.exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    for gpus in ((0,), ()):
        await run.rescale(gpus)
        await asyncio.wait_for(run.let_go(PATIENCE_S * 10), PATIENCE_S)
    await ended(run)


async def test_an_application_that_says_nothing_has_its_time(driver):
    run = await driver.start(app("import time; time.sleep(600)"))
    await run.rescale((0,))
    began = time.monotonic()
    await run.let_go(0.3)
    assert 0.3 <= time.monotonic() - began < PATIENCE_S
    await ended(run)
