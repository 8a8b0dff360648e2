"""What this package registers: the device `arena` and its kernels. Imports are lazy."""

from importlib import import_module
from typing import Any

from aethermind.hal import Probe
from aethermind.plugins import hookimpl


@hookimpl
def register_devices(registry: Any) -> None:
    probed = Probe(1, "it is part of this process's memory.")
    registry.register("arena", probe=lambda: probed, open=_open, priority=-1, provider="aethermind-arena")


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("arena", lambda: import_module("aethermind_arena.kernels").KERNELS, provider="aethermind-arena")


def _open() -> Any:
    return import_module("aethermind_arena.backend").ArenaBackend()
