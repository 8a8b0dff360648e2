"""Ports for servers that bind them a moment later, or once more."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_PORTS = range(15_000, 25_000)


def free_port() -> int:
    """A port of loopback that nobody has, below those that systems give to connections that go out."""
    return next(filter(_is_free, random.SystemRandom().sample(_PORTS, len(_PORTS))))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
