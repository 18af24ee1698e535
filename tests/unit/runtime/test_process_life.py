"""A process starts, drains and ends with the exit code that says why; its log lines are JSON."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from services.runtime.logs import JsonLines

PRELUDE = """
import asyncio, logging, sys
from services.runtime import process
from services.runtime.process import run_service
from services.runtime.bus.port import BusError
from services.runtime.config import ConfigError
log = logging.getLogger("test")
"""


def run(main: str, *, signals: int = 0, prelude: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        f"{PRELUDE}{prelude}{textwrap.dedent(main)}\nraise SystemExit(run_service('svc', main, instance_id='svc-0'))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(signals):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_drains_on_sigterm_and_ends_with_0():
    done = run(
        """
        async def main(stop):
            print("ready", flush=True)
            await stop.wait()
            log.info("drained", extra={"job_id": "j1", "trace_id": "t1"})
        """,
        signals=1,
    )
    assert done.returncode == 0
    told, drained = lines(done.stderr)
    assert told["message"] == "SIGTERM: draining"
    assert {key: drained[key] for key in ("level", "service", "instance_id", "message", "job_id", "trace_id")} == {
        "level": "info",
        "service": "svc",
        "instance_id": "svc-0",
        "message": "drained",
        "job_id": "j1",
        "trace_id": "t1",
    }


def test_a_second_signal_ends_at_once():
    began_s = time.monotonic()
    done = run(
        """
        async def main(stop):
            print("ready", flush=True)
            await stop.wait()
            print("ready", flush=True)
            await asyncio.sleep(100)
        """,
        signals=2,
    )
    assert done.returncode == 70
    assert time.monotonic() - began_s < 30


def test_a_drain_that_takes_too_long_is_cut():
    done = run(
        """
        async def main(stop):
            print("ready", flush=True)
            await stop.wait()
            await asyncio.sleep(100)
        """,
        signals=1,
        prelude="process.DRAIN_S_MAX = 0.1\n",
    )
    assert done.returncode == 70
    assert "still not drained" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ('ConfigError("GPUGRID_X is wrong.")', 78, "svc: GPUGRID_X is wrong.\n"),
        ('BusError("can\'t reach Kafka")', 69, "ending: can't reach Kafka"),
        ('ZeroDivisionError("oops")', 70, "ZeroDivisionError: oops"),
    ],
)
def test_exit_codes_say_why(error: str, code: int, text: str):
    done = run(f"async def main(stop):\n    raise {error}\n")
    assert done.returncode == code
    assert text in done.stderr


def test_lines_carry_exceptions_and_odd_values():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines("s", "i"))
    logger = logging.Logger("odd")
    logger.addHandler(handler)
    try:
        raise ValueError("multi\nline")
    except ValueError:
        logger.exception("failed %s", object, extra={"offset": 7, "reason": complex(1, 2), "unknown": 1})
    (line,) = lines(stream.getvalue())
    assert line["offset"] == 7
    assert line["reason"] == "(1+2j)"
    assert "unknown" not in line
    assert line["exception"].endswith("ValueError: multi\nline")
