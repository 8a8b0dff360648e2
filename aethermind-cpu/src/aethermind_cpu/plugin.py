"""Plugin hooks of the cpu backend. The native module is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aethermind.plugins import hookimpl

if TYPE_CHECKING:
    from aethermind.dispatch import Kernel, KernelRegistry
    from aethermind.hal import Backend, DeviceRegistry, Probe

__all__ = ["doctor_checks", "register_devices", "register_kernels"]

PROVIDER = "aethermind-cpu"


@hookimpl
def register_devices(registry: DeviceRegistry) -> None:
    """Register the device name `cpu`."""
    registry.register("cpu", probe=_probe, open=_open, priority=10, provider=PROVIDER)


@hookimpl
def register_kernels(registry: KernelRegistry) -> None:
    """Register the native kernels."""
    registry.register("cpu", _load_kernels, provider=PROVIDER)


@hookimpl
def doctor_checks() -> list[tuple[str, Callable[[], str]]]:
    """The checks of `aethermind doctor`: the native module, CPU features, compiled instruction set levels, and AMX."""
    return [
        ("cpu: native module", _describe_native_module),
        ("cpu: instruction sets", _describe_levels),
        ("cpu: tile unit", _describe_tile_unit),
    ]


def _probe() -> Probe:
    from importlib.util import find_spec

    from aethermind.hal import Probe

    if find_spec("aethermind_cpu._native") is None:
        return Probe(0, "aethermind-cpu was installed without its compiled module; reinstall it with a C++20 compiler.")
    return Probe(1, "every machine has a CPU")


def _open() -> Backend:
    from aethermind_cpu.backend import CpuBackend

    return CpuBackend()


def _load_kernels() -> list[Kernel]:
    from aethermind_cpu.kernels import kernels

    return kernels()


def _describe_native_module() -> str:
    from aethermind_cpu import _native

    features = ", ".join(_native.cpu_features()) or "no vector extensions beyond the baseline"
    return f"loaded; this CPU has {features}"


def _describe_levels() -> str:
    from aethermind_cpu import _native
    from aethermind_cpu.isa import built_levels, how_to_build_all, isa_levels, isa_limit

    built = built_levels()
    best = [isa for isa in isa_levels() if isa.features <= set(_native.cpu_features())][-1]
    report = f"kernels use {isa_limit().label}; built are {', '.join(isa.label for isa in built)}"
    if best not in built:
        report += f"; this CPU has {best.label}, which would be faster: {how_to_build_all()}"
    return report


_TILE_SUPPORT = {
    "present": "this CPU has AMX, and this process may use its tile registers",
    "not in cpu": "this CPU has no AMX with bfloat16 and int8",
    "not saved": "this CPU has AMX, but the operating system or the hypervisor has not enabled its registers in XCR0",
    "not permitted": (
        "this CPU has AMX, but Linux refused this process its registers (arch_prctl ARCH_REQ_XCOMP_PERM); "
        "look for a seccomp filter or a sandbox"
    ),
}


def _describe_tile_unit() -> str:
    from aethermind_cpu import _native

    report = _TILE_SUPPORT[_native.tile_support()]
    if _native.is_tile_unit_modelled():
        report += "; AETHERMIND_CPU_TILES=model replaces it by its model in software, which is slow"
    return report
