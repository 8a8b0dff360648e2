"""Bugs of native kernels: how workers share the work, and what C++ does to memory."""

from __future__ import annotations

from tests.conformance.planted.bug import Bug

__all__ = ["NATIVE_BUGS"]

NATIVE_BUGS: tuple[Bug, ...] = ()
