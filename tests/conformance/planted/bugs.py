"""The bugs that the kit has to find: what each breaks, as the text that is replaced by another, and where to look."""

from __future__ import annotations

from tests.conformance.planted.bug import Bug
from tests.conformance.planted.device_bugs import DEVICE_BUGS
from tests.conformance.planted.kernel_bugs import KERNEL_BUGS
from tests.conformance.planted.native_bugs import NATIVE_BUGS

__all__ = ["BUGS"]

BUGS: tuple[Bug, ...] = (*DEVICE_BUGS, *KERNEL_BUGS, *NATIVE_BUGS)
