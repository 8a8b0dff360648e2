"""What this package registers: the device `cann` and its kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aethermind.errors import PluginError
from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    from aethermind.dispatch import Kernel

_PROVIDER = "aethermind-cann"


@hookimpl
def register_devices(registry: Any) -> None:
    from aethermind_cann.probe import open_backend, probe

    registry.register("cann", probe=probe, open=open_backend, priority=20, provider=_PROVIDER)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("cann", _load_kernels, provider=_PROVIDER)


def _load_kernels() -> list[Kernel]:
    if find_spec("torch_npu") is None:
        raise PluginError("The kernels for cann are calls of torch_npu, which is not installed.")
    from aethermind_cann.kernels import load

    return load()
