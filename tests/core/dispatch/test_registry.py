"""Kernels are loaded when a device is first opened, once, and a package that cannot is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aethermind.dispatch import Kernel, KernelRegistry
from aethermind.errors import DeviceError, PluginError
from aethermind.hal import DType


def kernel(name: str) -> Kernel:
    return Kernel("add", "fake", name, frozenset({DType.FLOAT32}), function=print)


def test_several_packages_offer_kernels_for_one_device_and_each_is_loaded_once() -> None:
    loads: list[str] = []

    def loader(name: str) -> Sequence[Kernel]:
        loads.append(name)
        return [kernel(name)]

    registry = KernelRegistry()
    for name in ("a", "b"):
        registry.register("fake", lambda name=name: loader(name), provider=name)
    registry.register("other", lambda: loader("c"), provider="c")
    assert loads == []
    assert [found.name for found in registry.kernels("fake")] == ["a", "b"]
    assert registry.kernels("fake") is registry.kernels("fake")
    assert loads == ["a", "b"]


def test_a_device_without_kernels_has_none() -> None:
    assert KernelRegistry().kernels("fake") == ()


def test_kernels_that_cannot_be_loaded_name_their_package() -> None:
    def load(error: Exception) -> list[Kernel]:
        raise error

    registry = KernelRegistry()
    registry.register("broken", lambda: load(ImportError("no libk.so")), provider="aethermind-k")
    registry.register("clear", lambda: load(DeviceError("Too old.")), provider="aethermind-k")
    with pytest.raises(PluginError, match=r"^The kernels of aethermind-k for broken cannot be loaded: ImportError: no"):
        registry.kernels("broken")
    with pytest.raises(DeviceError, match=r"^Too old\.$"):
        registry.kernels("clear")


def test_a_frozen_registry_takes_nothing() -> None:
    registry = KernelRegistry()
    registry.freeze()
    with pytest.raises(AssertionError, match="frozen"):
        registry.register("fake", list, provider="late")
