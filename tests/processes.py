"""Waiting for processes that this one need not have started."""

from __future__ import annotations

import os
import select

__all__ = ["await_end"]

_PATIENCE_S = 120


def await_end(pid: int) -> None:
    """Return when a process has ended, reaped or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor) as ended:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert poll.poll(1000 * _PATIENCE_S), f"process {pid} goes on"
