"""How cards are cut into slots, behind a port: played, or by NVIDIA's own programs, or by a command of the site.

Owns: the programs and their arguments (docs/sharing.md), an end to programs that hang, and reading how a card is cut now. MPS: one
control daemon per card, so that clients of one card can't meet those of another. Refuses: asking whether a card is empty
(`../cards.py` does), and believing that a program did what it says: the caller measures. Read next: `../cards.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from schemas.catalog import SlotKind, Slots
from services.runtime.clock import Clock

KILLED_WAIT_S = 5.0
"""A program in the driver's hands may not die at once; one that never does is left behind, the cards are then what they measure to be."""
OUTPUT_SHOWN = 160
PLAYED_CUT_S = 20.0
"""Domain seconds; on real cards MIG instances take some seconds, a change of MIG mode up to half a minute."""


class CutError(Exception):
    """The cards could not be cut; the message names the card and the cause."""


class SharedMachine(Struct, frozen=True, kw_only=True):
    """A machine, its cards, the pool of its whole cards, and the pools of slots they may be cut into."""

    name: str
    cards: int
    whole: str
    slots: dict[str, Slots]


class Cutter(Protocol):
    """Cuts cards of one machine."""

    async def cut(self, cards: Sequence[int], pool: str) -> None:
        """Raises CutError. May be cancelled; what is then left of it must be measured."""
        ...

    async def measured(self, card: int, likely: Sequence[str]) -> str | None:
        """The pool whose slots the card has now, empty: of none; None: it can't be told. `likely`: what it was cut for last; before
        that, where a cut was broken off, what it was to become."""
        ...


class PlayedCutter:
    """Remembers; `fails` and `hangs` hold cards that do."""

    def __init__(self, machine: SharedMachine, clock: Clock, *, cut_s: float = PLAYED_CUT_S) -> None:
        self.pools = [machine.whole] * machine.cards
        self.fails: dict[int, str] = {}
        self.hangs: set[int] = set()
        self._clock = clock
        self._cut_s = cut_s

    async def cut(self, cards: Sequence[int], pool: str) -> None:
        for card in cards:
            await self._clock.sleep_until(self._clock.now_ms() + round(self._cut_s * 1000))
            if card in self.hangs:
                await asyncio.Event().wait()
            if card in self.fails:
                raise CutError(f"card {card}: {self.fails[card]}")
            self.pools[card] = pool

    async def measured(self, card: int, likely: Sequence[str]) -> str | None:
        return likely[-1]  # what is played is what the journal says


class NvidiaCutter:
    """With nvidia-smi and nvidia-cuda-mps-control, or `command CARD KIND PER_CARD PROFILE` where the site has its own."""

    def __init__(self, machine: SharedMachine, mps_dir: Path, *, command: str = "", nvml: Any = None) -> None:
        self._machine = machine
        self._mps_dir = mps_dir
        self._command = command
        self._nvml = nvml

    async def cut(self, cards: Sequence[int], pool: str) -> None:
        slots = self._machine.slots.get(pool)
        for card in cards:
            if self._command:
                words = ["whole", "1", ""] if slots is None else [slots.kind.value, str(slots.per_card), slots.profile]
                await _run(card, [self._command, str(card), *words])
                continue
            await self._whole(card)
            if slots is not None and slots.kind is SlotKind.MIG:
                await _run(card, ["nvidia-smi", "-i", str(card), "-mig", "1"])
                profiles = ",".join([slots.profile] * slots.per_card)
                await _run(card, ["nvidia-smi", "mig", "-i", str(card), "-cgi", profiles, "-C"])
            elif slots is not None:
                await self._start_mps(card)

    async def measured(self, card: int, likely: Sequence[str]) -> str | None:
        if self._command:
            return None
        found = await asyncio.to_thread(self._mig_profiles, card)
        if found is None:
            return None
        if found:
            for name, known in self._machine.slots.items():
                if known.kind is SlotKind.MIG and found == [known.profile] * known.per_card:
                    return name
            return ""
        for pool in likely:
            slots = self._machine.slots.get(pool)
            if slots is not None and slots.kind is SlotKind.MPS and _alive(self.mps_dir(card)):
                return pool
        return self._machine.whole

    def mps_dir(self, card: int) -> Path:
        """Where clients of this card's MPS daemon find it."""
        return self._mps_dir / str(card)

    async def _whole(self, card: int) -> None:
        """Whatever it is now. Instances that aren't there, and a daemon that doesn't run, are no failure."""
        if _alive(self.mps_dir(card)):
            await _run(card, ["nvidia-cuda-mps-control"], environment=self._mps_environment(card), said="quit\n")
        if await asyncio.to_thread(self._mig_profiles, card):
            await _run(card, ["nvidia-smi", "mig", "-i", str(card), "-dci"])
            await _run(card, ["nvidia-smi", "mig", "-i", str(card), "-dgi"])
        await _run(card, ["nvidia-smi", "-i", str(card), "-mig", "0"], optional=True)  # older cards know no MIG

    async def _start_mps(self, card: int) -> None:
        self.mps_dir(card).mkdir(parents=True, exist_ok=True)
        await _run(card, ["nvidia-cuda-mps-control", "-d"], environment=self._mps_environment(card))

    def _mps_environment(self, card: int) -> dict[str, str]:
        folder = str(self.mps_dir(card))
        return {"CUDA_VISIBLE_DEVICES": str(card), "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

    def _mig_profiles(self, card: int) -> list[str] | None:
        """Names of the card's MIG instances; None if the driver doesn't say."""
        nvml = self._library()
        if nvml is None:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(card)
            return [profile for profile, _ in mig_devices(nvml, handle)]
        except nvml.NVMLError:
            return None

    def _library(self) -> Any:
        if self._nvml is None:
            with contextlib.suppress(ImportError):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    self._nvml = pynvml
        return self._nvml


def mig_devices(nvml: Any, handle: Any) -> list[tuple[str, str]]:
    """(profile, UUID) of a card's MIG devices in order; none where MIG is off or unknown."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for index in range(count):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue  # indices of instances that don't exist
        name = _text(nvml.nvmlDeviceGetName(device))
        found.append((name.rpartition("MIG ")[2], _text(nvml.nvmlDeviceGetUUID(device))))
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _alive(folder: Path) -> bool:
    """Whether the control daemon that wrote its pid there still runs."""
    try:
        os.kill(int((folder / "nvidia-cuda-mps-control.pid").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


async def _run(
    card: int,
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    said: str = "",
    optional: bool = False,
) -> None:
    """Run a program to its end. Raises CutError with the last words of one that fails; a cancelled one is killed with its children."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        if optional:
            return
        raise CutError(f"card {card}: {command[0]} can't be run: {error.strerror}") from None
    try:
        output, _ = await process.communicate(said.encode())
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILLED_WAIT_S)
        raise
    if process.returncode and not optional:
        words = " ".join(output.decode("utf-8", "replace").split())[-OUTPUT_SHOWN:]
        raise CutError(f"card {card}: {command[0]} ended with {process.returncode}: {words}")
