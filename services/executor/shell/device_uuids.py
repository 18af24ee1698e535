"""The UUIDs of this machine's GPUs by index, so that jobs get cards by name and not by a position that may shift.

Refuses: failing. A machine without NVIDIA's library simply has none, and jobs get indices. Read next: `drivers/environment.py`.
"""

from __future__ import annotations

import contextlib


def device_uuids() -> tuple[str, ...]:
    """In index order; empty where there is no NVIDIA driver, or where one of the GPUs doesn't answer."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_uuid(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _uuid(pynvml, index: int) -> str:  # type: ignore[no-untyped-def]
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
    return uuid.decode() if isinstance(uuid, bytes) else uuid
