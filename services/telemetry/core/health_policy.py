"""What an error of a GPU means for the grid, as one table: count it, place nothing new, or empty the GPU; and how it comes back.

Owns: the classes by NVIDIA's Xid number and by counter, with where each comes from, and the operator's overrides. Refuses:
acting (the handler publishes the state; the allocator places nothing on a GPU that isn't healthy) and marking a card for what
an application did to itself: most Xids are the program's fault, and a card taken out for them is a card lost for nothing.
Sources:
  XID  NVIDIA, "Xid Errors", catalog and its resolution buckets: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
  MEM  NVIDIA, "GPU Memory Error Management": docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt (containment, row remapping, flags)
  HV   NVIDIA, "Health Validation", Xid checks with actions: docs.nvidia.com/health-validation/reference/checks/xid
  RET  NVIDIA, "Dynamic Page Retirement": docs.nvidia.com/deploy/dynamic-page-retirement/visibility.html
  API  nvml.h, nvmlDeviceGpuRecoveryAction_t
Read next: `ailments.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from schemas.nodes import HealthAction


class Recovery(Enum):
    """What must be seen before a GPU with this error counts as healthy again (always after good samples, too)."""

    SAMPLES = "samples"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the policy. `meaning` is for people, `source` names where it comes from."""

    action: HealthAction
    recovery: Recovery
    meaning: str
    source: str


COUNT, STOP, DRAIN = HealthAction.COUNT, HealthAction.STOP_PLACING, HealthAction.DRAIN
SAMPLES, RESET = Recovery.SAMPLES, Recovery.RESET

RULES: dict[str, Rule] = {
    # The program's own doing, or over with it.
    "xid 8": Rule(COUNT, SAMPLES, "GPU stopped processing; the program is to be restarted", "XID"),
    "xid 11": Rule(COUNT, SAMPLES, "invalid push buffer; the program is to be restarted", "XID"),
    "xid 13": Rule(COUNT, SAMPLES, "graphics engine exception, mostly the program's", "XID"),
    "xid 31": Rule(COUNT, SAMPLES, "GPU memory page fault, mostly the program's", "XID"),
    "xid 43": Rule(COUNT, SAMPLES, "reset channel verification error; the program is to be restarted", "XID"),
    "xid 45": Rule(COUNT, SAMPLES, "preemptive cleanup after another error or a killed program", "XID"),
    "xid 68": Rule(COUNT, SAMPLES, "video decoder exception", "XID"),
    "xid 63": Rule(
        COUNT, SAMPLES, "row remapped or page retired; active after the next reset, work may go on", "MEM, RET"
    ),
    "xid 92": Rule(COUNT, SAMPLES, "many corrected memory errors", "XID"),
    # No new work until a reset; what runs may end.
    "xid 62": Rule(STOP, RESET, "internal micro-controller halt", "XID"),
    "xid 74": Rule(STOP, RESET, "NVLink error", "XID"),
    "xid 94": Rule(
        STOP, RESET, "contained memory error: its program is lost, the rest goes on until the reset", "MEM, HV"
    ),
    "xid 109": Rule(STOP, RESET, "context switch timeout", "XID"),
    "xid 119": Rule(STOP, RESET, "GPU system processor timeout", "XID"),
    "xid 120": Rule(STOP, RESET, "GPU system processor error", "XID"),
    "xid 154": Rule(STOP, RESET, "the driver asks for a recovery action", "XID, API"),
    # What runs there is in danger or gone.
    "xid 46": Rule(DRAIN, RESET, "GPU stopped processing", "HV"),
    "xid 48": Rule(DRAIN, RESET, "uncorrectable double bit memory error", "HV, RET"),
    "xid 64": Rule(DRAIN, RESET, "row remapping or page retirement failed", "MEM, RET"),
    "xid 79": Rule(DRAIN, RESET, "GPU has fallen off the bus", "XID"),
    "xid 95": Rule(DRAIN, RESET, "uncontained memory error", "MEM"),
    "xid 140": Rule(DRAIN, RESET, "unrecovered memory error", "XID"),
    "xid 143": Rule(DRAIN, RESET, "GPU could not be initialised", "XID"),
    # Counters and flags.
    "ecc uncorrected": Rule(STOP, RESET, "uncorrectable memory errors since the last reset", "MEM"),
    "row remap pending": Rule(COUNT, SAMPLES, "a row is replaced at the next reset; new work may be placed", "MEM"),
    "row remap failed": Rule(DRAIN, RESET, "a row could not be replaced: the card is to be replaced", "MEM"),
    "recovery reset_gpu": Rule(STOP, SAMPLES, "the driver asks for a reset of the GPU", "API"),
    "recovery reset_bus": Rule(STOP, SAMPLES, "the driver asks for a reset of the GPU's bus", "API"),
    "recovery recover_imex_domain": Rule(STOP, SAMPLES, "the driver asks for recovery of the IMEX domain", "API"),
    "recovery drain_p2p": Rule(DRAIN, SAMPLES, "the driver asks that peer-to-peer traffic be drained", "API"),
    "recovery drain_and_reset": Rule(DRAIN, SAMPLES, "the driver asks for draining and a reset", "API"),
    "recovery reboot_node": Rule(DRAIN, SAMPLES, "the driver asks for a reboot of the node", "API"),
    "recovery reboot_system": Rule(DRAIN, SAMPLES, "the driver asks for a reboot of the system", "API"),
    # Ours: the next job would run out of memory on a card that looks free.
    "orphan process": Rule(STOP, SAMPLES, "a process without a placement holds the GPU's memory", "gpugrid"),
}
"""Codes not listed are counted: new drivers bring new numbers, and most of them are harmless."""

UNKNOWN = Rule(COUNT, SAMPLES, "not in gpugrid's table", "gpugrid")


class Policy:
    """The table with an operator's overrides. `drains`: telemetry may order drains itself; otherwise it only asks for them."""

    def __init__(self, overrides: dict[str, HealthAction] | None = None, *, drains: bool = False) -> None:
        self._rules = dict(RULES)
        for key, action in (overrides or {}).items():
            self._rules[key] = replace(self._rules.get(key, UNKNOWN), action=action)
        self.drains = drains

    def rule(self, key: str) -> Rule:
        return self._rules.get(key, UNKNOWN)


def strictest(actions: Iterable[HealthAction]) -> HealthAction:
    order = (COUNT, STOP, DRAIN)
    return max(actions, key=order.index, default=COUNT)


def read_overrides(texts: Iterable[str]) -> dict[str, HealthAction]:
    """From `xid 94=count`. Raises ValueError with a sentence."""
    found = {}
    for text in texts:
        key, separator, action = (part.strip() for part in text.partition("="))
        known = {each.value: each for each in HealthAction}
        if not separator or action not in known or not (key in RULES or key.startswith("xid ")):
            raise ValueError(
                f"{text!r} is no override: write KEY=ACTION with an action of {', '.join(known)} and a key such as "
                f"{', '.join(list(RULES)[:3])}, ecc uncorrected"
            )
        found[key] = known[action]
    return found
