"""What this package registers: the device `cuda`."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl


@hookimpl
def register_devices(registry: Any) -> None:
    from aethermind_cuda.probe import open_backend, probe

    registry.register("cuda", probe=probe, open=open_backend, priority=30, provider="aethermind-cuda")
