"""Fault injection: a failing allocation, a failing copy, or a device loss at a given count."""

from __future__ import annotations

from threading import Lock

from aethermind.errors import DeviceError, InvalidArgumentError

__all__ = ["FAULTS", "Faults", "parse_faults"]

FAULTS = ("allocation", "copy", "lost")
"""The kinds of faults: a failing allocation, a failing copy or fill, and the loss of the device."""


class Faults:
    """Pending injected faults. Allocations and copies fail once; a device loss is permanent."""

    def __init__(self) -> None:
        self._countdown: dict[str, int] = {}
        self._is_lost = False
        self._lock = Lock()

    def inject(self, fault: str, nth: int = 1) -> None:
        """Let the `nth` allocation, copy or work item from now on fail; `fault` is one of FAULTS."""
        if fault not in FAULTS or nth < 1:
            raise InvalidArgumentError(
                f"Cannot inject {fault}={nth}: a fault is one of {', '.join(FAULTS)}, counted from 1."
            )
        with self._lock:
            self._countdown[fault] = nth

    def is_due(self, fault: str) -> bool:
        """Count one occurrence and return whether it fails."""
        with self._lock:
            remaining = self._countdown.pop(fault, 0) - 1
            if remaining > 0:
                self._countdown[fault] = remaining
            return remaining == 0

    def check_copy(self) -> None:
        """Count a copy; DeviceError if it is the failing one."""
        if self.is_due("copy"):
            raise DeviceError("A copy of the simulated device failed: an injected fault.")

    def check_work(self) -> None:
        """Count a work item; DeviceError at the one that loses the device, and from then on."""
        self._is_lost = self._is_lost or self.is_due("lost")
        self.check_present()

    def check_present(self) -> None:
        """Raise DeviceError after a device loss."""
        if self._is_lost:
            raise DeviceError("The simulated device was lost: an injected fault. Open it again.")


def parse_faults(text: str) -> Faults:
    """Parse `FAULT=N,…`, such as `allocation=3,copy=10,lost=200`; InvalidArgumentError for anything else."""
    faults = Faults()
    for part in filter(None, (part.strip() for part in text.split(","))):
        fault, _, nth = part.partition("=")
        if not nth.isdecimal():
            raise InvalidArgumentError(
                f"AETHERMIND_SIM_FAULTS has {part!r}; write FAULT=N with one of {', '.join(FAULTS)}, such as copy=10."
            )
        faults.inject(fault, int(nth))
    return faults
