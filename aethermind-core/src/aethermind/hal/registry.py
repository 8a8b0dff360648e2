"""Which devices exist by name, and which one `auto` means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aethermind.errors import AetherMindError, DeviceError, PluginError
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId, Probe

__all__ = ["DeviceEntry", "DeviceRegistry", "Selection"]


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One registered backend. `probe` is cheap and never raises for absent hardware; `open` makes the backend."""

    name: str
    priority: int
    probe: Callable[[], Probe]
    open: Callable[[], Backend]
    provider: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen device and, in words, why."""

    device: DeviceId
    entry: DeviceEntry
    reason: str


class DeviceRegistry:
    """Device names to backends; filled at boot, then frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, DeviceEntry] = {}
        self._failed: dict[str, str] = {}
        self._is_frozen = False

    def register(
        self,
        name: str,
        *,
        probe: Callable[[], Probe],
        open: Callable[[], Backend],
        priority: int = 0,
        provider: str = "aethermind-core",
        replaces: str | None = None,
    ) -> None:
        """Claim a device name. Two providers of one name are a PluginError unless the second says `replaces=` the first."""
        assert not self._is_frozen, "registries are frozen after boot"
        taken = self._entries.get(name)
        if taken is not None and replaces != taken.provider:
            raise PluginError(
                f"Device {name!r} is claimed by both {taken.provider} and {provider}. "
                f"Uninstall one of them, or let one say replaces={taken.provider!r}."
            )
        self._entries[name] = DeviceEntry(name, priority, probe, open, provider)

    def record_failure(self, name: str, reason: str) -> None:
        """Remember that the plugin which would provide `name` failed, so that asking for it says why."""
        self._failed[name] = reason

    def freeze(self) -> None:
        self._is_frozen = True

    def __iter__(self) -> Iterator[DeviceEntry]:
        """Entries in the order in which `auto` tries them."""
        return iter(sorted(self._entries.values(), key=lambda entry: -entry.priority))

    def select(self, text: str) -> Selection:
        """Resolve `auto`, `NAME` or `NAME:INDEX`; DeviceError with the reason when it is unknown or absent."""
        if text == "auto":
            return self._select_automatically()
        device = DeviceId.parse(text)
        entry = self._entries.get(device.type)
        if entry is None:
            if device.type in self._failed:
                raise DeviceError(f"Device {text!r} is not available: {self._failed[device.type]} Run `aethermind doctor` for details.")
            known = ", ".join(sorted(self._entries))
            raise DeviceError(f"Unknown device {text!r}. Installed: {known}. Install the plugin that provides it, or pass --device auto.")
        probe = entry.probe()
        if not probe.is_available:
            raise DeviceError(f"Device {text!r} is not available: {probe.reason} Pass --device auto to use what this machine has.")
        if device.index >= probe.count:
            raise DeviceError(f"Device {text!r} does not exist: {device.type} has {probe.count} device(s), numbered from 0.")
        return Selection(device, entry, f"{device} was asked for")

    def _select_automatically(self) -> Selection:
        passed_over = []
        for entry in self:
            try:
                probe = entry.probe()
            except AetherMindError as error:
                passed_over.append(f"{entry.name}: {error}")
                continue
            if probe.is_available and entry.priority >= 0:
                reason = f"highest priority of the available devices ({entry.priority})"
                if passed_over:
                    reason += "; passed over " + "; ".join(passed_over)
                return Selection(DeviceId(entry.name, 0), entry, reason)
            passed_over.append(f"{entry.name}: {probe.reason}")
        raise DeviceError("No device is available. " + "; ".join(passed_over) + ". Install aethermind[cpu].")
