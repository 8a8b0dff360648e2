"""Plugin hooks: they register the device `sim`, which `device="auto"` never selects, and its reference kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    from aethermind.dispatch import Kernel
    from aethermind_sim.backend import SimBackend

_PROVIDER = "aethermind-sim"


@hookimpl
def register_devices(registry: Any) -> None:
    from aethermind_sim.probe import probe

    registry.register("sim", probe=probe, open=_open_backend, priority=-1, provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("sim", _load_kernels, provider=_PROVIDER)


def _open_backend() -> SimBackend:
    from aethermind_sim.backend import open_backend

    return open_backend()


def _load_kernels() -> list[Kernel]:
    from aethermind.dispatch.reference import reference_kernels
    from aethermind.ops import catalog

    return reference_kernels(catalog.load(), "sim")
