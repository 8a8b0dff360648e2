"""Plugin hooks: registers the device `cuda` and its kernels."""

from __future__ import annotations

from typing import Any

from aethermind.plugins import hookimpl


@hookimpl
def register_devices(registry: Any) -> None:
    from aethermind_cuda.probe import open_backend, probe

    registry.register("cuda", probe=probe, open=open_backend, priority=30, provider="aethermind-cuda")


@hookimpl
def register_kernels(registry: Any) -> None:
    from aethermind_cuda.kernels import load_kernels

    registry.register("cuda", load_kernels, provider="aethermind-cuda")
