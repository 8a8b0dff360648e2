"""What this package registers: the device `cann`."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl


@hookimpl
def register_devices(registry: Any) -> None:
    from aethermind_cann.probe import open_backend, probe

    registry.register("cann", probe=probe, open=open_backend, priority=20, provider="aethermind-cann")
