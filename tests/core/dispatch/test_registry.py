"""Kernels are loaded when a device is first opened, once, and a package that cannot is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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


def other_device() -> list[Kernel]:
    return [replace(kernel("good"), device_type="elsewhere")]


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        ([42], "Item 0 of what load() returned is 42, of type int, instead of a Kernel."),
        (lambda: [kernel("good"), None], "Item 1 of what load() returned is None, of type NoneType, instead of a Ke"),
        (None, "load() returned NoneType instead of kernels."),
        (lambda: kernel("alone"), "load() returned Kernel instead of kernels."),
        (other_device, "Item 0 of what load() returned is kernel 'good' for operator 'add', made for device 'elsew"),
        (
            lambda: [replace(kernel("good"), dtypes=frozenset({"float32"}))],  # type: ignore[arg-type]
            "Item 0 of what load() returned is kernel 'good' for operator 'add', whose dtypes are frozenset({'float3",
        ),
    ],
)
def test_what_is_no_kernel_names_its_package(offered: Any, problem: str) -> None:
    registry = KernelRegistry()
    registry.register("fake", offered if callable(offered) else lambda: offered, provider="aethermind-k")
    with pytest.raises(PluginError) as caught:
        registry.kernels("fake")
    assert str(caught.value).startswith(f"The kernels of aethermind-k for fake cannot be loaded: {problem}")
    assert str(caught.value).endswith(" Update or uninstall aethermind-k.")


def test_kernels_may_be_generated_and_know_their_package() -> None:
    registry = KernelRegistry()
    registry.register("fake", lambda: (kernel(name) for name in "ab"), provider="aethermind-k")  # type: ignore[arg-type, return-value]
    assert [(one.name, one.provider) for one in registry.kernels("fake")] == [
        ("a", "aethermind-k"),
        ("b", "aethermind-k"),
    ]


def test_a_frozen_registry_takes_nothing() -> None:
    registry = KernelRegistry()
    registry.freeze()
    with pytest.raises(AssertionError, match="frozen"):
        registry.register("fake", list, provider="late")
