"""The registry of devices: claims, the choice of `auto`, and the errors of unavailable devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError, PluginError
from aethermind.hal import Backend, DeviceId, DeviceRegistry, Probe
from aethermind.hal.builtin_backends import NullBackend


def registry_of(*devices: tuple[str, int, Probe]) -> DeviceRegistry:
    registry = DeviceRegistry()
    for name, priority, probe in devices:
        registry.register(
            name, probe=lambda probe=probe: probe, open=NullBackend, priority=priority, provider=f"p-{name}"
        )
    return registry


HERE, ABSENT = Probe(1, "it is here."), Probe(0, "the cable is loose.")


def test_auto_takes_the_available_device_of_highest_priority() -> None:
    registry = registry_of(("low", 1, HERE), ("absent", 30, ABSENT), ("high", 20, HERE))
    selection = registry.select("auto")
    assert selection.device == DeviceId("high", 0)
    assert selection.entry.provider == "p-high"
    assert selection.reason == (
        "highest priority (20) of the available devices; passed over absent: the cable is loose"
    )
    assert [entry.name for entry in registry] == ["absent", "high", "low"]


def test_a_negative_priority_is_taken_by_name_only() -> None:
    registry = registry_of(("null", -1, HERE), ("gone", 3, ABSENT))
    with pytest.raises(
        DeviceError,
        match=r"^No device is available\. Considered: gone: the cable is loose\. Run `pip install .*aethermind-cpu`",
    ):
        registry.select("auto")
    assert registry.select("null").reason == "null:0 was asked for"


def test_auto_without_any_device() -> None:
    with pytest.raises(DeviceError, match="Considered: none is installed"):
        DeviceRegistry().select("auto")


def test_an_unknown_device_lists_the_installed() -> None:
    registry = registry_of(("numpy", 0, HERE), ("cpu", 10, HERE))
    with pytest.raises(
        DeviceError,
        match=r"^Unknown device 'gpu:1'\. Installed: cpu, numpy\. No package .* Name one of these\.$",
    ):
        registry.select("gpu:1")


def test_an_absent_device_says_why() -> None:
    with pytest.raises(
        DeviceError, match=r"^Device 'x:0' is not available: the cable is loose\. Name another one; auto is"
    ):
        registry_of(("x", 0, ABSENT)).select("x:0")


def test_an_index_out_of_range_says_how_many_there_are() -> None:
    registry = registry_of(("x", 0, Probe(2, "two.")))
    assert registry.select("x:1").device == DeviceId("x", 1)
    with pytest.raises(DeviceError, match=r"'x:2' does not exist: x has 2 device\(s\), counted from 0"):
        registry.select("x:2")


def test_a_malformed_name_is_an_argument_error() -> None:
    with pytest.raises(InvalidArgumentError, match="NAME or NAME:INDEX"):
        registry_of().select("x:y")


def test_a_failed_plugin_is_named() -> None:
    registry = registry_of(("numpy", 0, HERE))
    registry.record_failure("cuda", "its plugin cuda (aethermind-cuda 1.0) failed: ImportError: no module x.")
    with pytest.raises(DeviceError, match=r"^Device 'cuda' is not available: its plugin .* no module x\. Run `aether"):
        registry.select("cuda")
    with pytest.raises(DeviceError, match=r"Installed: numpy\. Plugins that failed: cuda\."):
        registry.select("mychip")


def test_a_claimed_name_names_both_providers() -> None:
    registry = registry_of(("cpu", 0, HERE))
    with pytest.raises(PluginError, match=r"'cpu' is claimed by both p-cpu and thief\. .* replaces='p-cpu'"):
        registry.register("cpu", probe=lambda: HERE, open=NullBackend, provider="thief")
    assert registry.select("cpu").entry.provider == "p-cpu"


def test_a_name_may_be_replaced_by_name_of_its_provider() -> None:
    registry = registry_of(("cpu", 0, HERE))
    registry.register("cpu", probe=lambda: HERE, open=NullBackend, provider="better", replaces="p-cpu")
    assert registry.select("cpu").entry.provider == "better"
    with pytest.raises(PluginError, match="both better and other"):
        registry.register("cpu", probe=lambda: HERE, open=NullBackend, provider="other", replaces="p-cpu")


def test_a_probe_that_raises_counts_as_absent() -> None:
    registry = registry_of(("low", 0, HERE))
    registry.register("broken", probe=lambda: Probe(1 // 0, ""), open=NullBackend, provider="p", priority=9)
    assert registry.select("auto").reason.endswith(
        "passed over broken: its probe raised ZeroDivisionError: " + DIVISION
    )
    with pytest.raises(DeviceError, match="'broken' is not available: its probe raised ZeroDivisionError"):
        registry.select("broken")


DIVISION = "integer division or modulo by zero"


def raising(error: Exception) -> Callable[[], Backend]:
    def open_backend() -> Backend:
        raise error

    return open_backend


def test_a_backend_that_cannot_be_opened_is_an_error_of_one_sentence() -> None:
    registry = DeviceRegistry()
    for name, error in (("broken", ImportError("no libx.so")), ("full", OutOfMemoryError("Out of memory."))):
        registry.register(name, probe=lambda: HERE, open=raising(error), provider="p")
    with pytest.raises(DeviceError, match=r"^Device 'broken' could not be opened: ImportError: no libx\.so\. Run"):
        registry.select("broken").entry.open()
    with pytest.raises(OutOfMemoryError, match=r"^Out of memory\.$"):
        registry.select("full").entry.open()


def test_a_frozen_registry_refuses_devices() -> None:
    registry = registry_of()
    registry.freeze()
    with pytest.raises(AssertionError, match="frozen"):
        registry.register("x", probe=lambda: HERE, open=NullBackend, provider="p")
