"""Whether an application serves: its declared probe, tried once.

Owns: the three kinds of probe. Refuses: deciding what follows (`shell/serving.py`). Read next: `schemas/jobs.py`, `Readiness`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from schemas.jobs import ProbeKind, Readiness

PROBE_WAIT_S = 2.0
"""An application that takes longer to say that it is well is not."""


async def probe(readiness: Readiness, folder: Path, port: int) -> bool:
    """`port`: the one the job was given, used where the probe names none."""
    if readiness.kind is ProbeKind.FILE:
        return (folder / readiness.path).exists()
    try:
        return await asyncio.wait_for(_connected(readiness, readiness.port or port), PROBE_WAIT_S)
    except (OSError, TimeoutError, ValueError):
        return False


async def _connected(readiness: Readiness, port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if readiness.kind is ProbeKind.TCP:
            return True
        path = readiness.path or "/"
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = (await reader.readline()).split()
        return len(status) >= 2 and status[0].startswith(b"HTTP/") and status[1].startswith(b"2")
    finally:
        writer.close()
