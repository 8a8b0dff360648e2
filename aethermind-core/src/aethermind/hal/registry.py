"""The registry of devices: backends by name, and the device that `auto` selects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import AetherMindError, DeviceError, PluginError, describe_exception
from aethermind.first_party import install_advice, pip_install_command
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId, Probe
from aethermind.log import get_logger

__all__ = ["DeviceEntry", "DeviceRegistry", "Selection"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One registered backend.

    Attributes:
        probe: checks whether the device is present; never raises.
        cached_probe: returns the result of the probe in an earlier process, or None.
        open: makes the backend, or raises an AetherMindError.
        examine: opens the backend in a child process and returns the device's properties as JSON (see
            `runtime.isolated_devices`); None for first-party backends, which are opened in this process.
        priority: `auto` takes the available entry with the highest priority, and never one with a negative priority.
    """

    name: str
    priority: int
    probe: Callable[[], Probe]
    open: Callable[[], Backend]
    provider: str
    cached_probe: Callable[[], Probe | None]
    examine: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen device, and the reason for the choice as text."""

    device: DeviceId
    entry: DeviceEntry
    reason: str


class DeviceRegistry:
    """Maps device names to backends; filled at boot, then frozen."""

    def __init__(self) -> None:
        self._entries: dict[str, DeviceEntry] = {}
        self._failures: dict[str, str] = {}
        self._is_frozen = False

    def register(
        self,
        name: str,
        *,
        probe: Callable[[], Probe],
        open: Callable[[], Backend],
        provider: str,
        priority: int = 0,
        replaces: str | None = None,
        cached_probe: Callable[[], Probe | None] = lambda: None,
        examine: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Register a device name. PluginError for a name that another package has, unless `replaces=` names that
        package.

        Only the runtime passes `cached_probe` and `examine`, for devices of third parties.
        """
        assert not self._is_frozen, "registries are frozen after boot"
        existing = self._entries.get(name)
        if existing is not None and replaces != existing.provider:
            raise PluginError(
                f"Device {name!r} is claimed by both {existing.provider} and {provider}. "
                f"Uninstall one of them, or let one say replaces={existing.provider!r}."
            )
        self._entries[name] = DeviceEntry(
            name, priority, _guarded_probe(probe), _guarded_open(name, open), provider, cached_probe, examine
        )

    def record_failure(self, plugin: str, reason: str) -> None:
        """Record that a plugin failed, for the error about a device that it would have provided."""
        self._failures[plugin] = reason

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def __iter__(self) -> Iterator[DeviceEntry]:
        """Iterate over the entries, the highest priority first."""
        return iter(sorted(self._entries.values(), key=lambda entry: -entry.priority))

    def open(self, text: str) -> tuple[Selection, Backend]:
        """Select a device, open it and make it current; DeviceError says what is wrong with the name or the hardware.

        `auto` skips a device that cannot be opened, with a warning.
        """
        failed: dict[str, str] = {}
        while True:
            selection = self._select_automatically(failed) if text == "auto" else self.select(text)
            try:
                backend = selection.entry.open()
                backend.devices.set_current(selection.device.index)  # the allocator allocates on the current device
                return selection, backend
            except AetherMindError as error:
                if text != "auto":
                    raise
                failed[selection.entry.name] = str(error)

    def select(self, text: str) -> Selection:
        """Resolve `auto`, `NAME` or `NAME:INDEX`; DeviceError gives the reason for an unknown or absent device."""
        if text == "auto":
            return self._select_automatically({})
        device = DeviceId.parse(text)
        entry = self._entries.get(device.type)
        if entry is None:
            raise self._unknown(device, text)
        probe = entry.cached_probe()
        if probe is None or not probe.is_available:  # the device may have been repaired since
            probe = entry.probe()
        if not probe.is_available:
            raise DeviceError(
                f"Device {text!r} is not available: {_clause(probe.reason)}. "
                "Name another one; auto is the best that this machine has."
            )
        if device.index >= probe.count:
            raise DeviceError(
                f"Device {text!r} does not exist: {device.type} has {probe.count} device(s), counted from 0."
            )
        return Selection(device, entry, f"{device} was asked for")

    def _unknown(self, device: DeviceId, text: str) -> DeviceError:
        if device.type in self._failures:
            return DeviceError(
                f"Device {text!r} is not available: {_clause(self._failures[device.type])}. "
                "Run `aethermind doctor` for details."
            )
        known = ", ".join(sorted(self._entries)) or "none"
        failed = f" Plugins that failed: {', '.join(sorted(self._failures))}." if self._failures else ""
        return DeviceError(
            f"Unknown device {text!r}. Installed: {known}.{failed} "
            + install_advice("device", device.type, otherwise="Name one of these.")
        )

    def _select_automatically(self, failed: Mapping[str, str]) -> Selection:
        """Select the available device of highest priority, except those in `failed`: name and reason."""
        skipped: list[str] = []
        broken: list[str] = []
        for entry in self:
            if entry.priority < 0:
                break
            if entry.name in failed:
                skipped.append(f"{entry.name}: {_clause(failed[entry.name])}")
                broken.append(skipped[-1])
                continue
            probe = entry.cached_probe() or entry.probe()
            if probe.is_available:
                others = "".join(f"; passed over {other}" for other in skipped)
                self._warn_of_failures(entry.name, broken)
                reason = f"highest priority ({entry.priority}) of the available devices{others}"
                return Selection(DeviceId(entry.name), entry, reason)
            skipped.append(f"{entry.name}: {_clause(probe.reason)}")
            if probe.is_broken:
                broken.append(skipped[-1])
        considered = "; ".join(skipped) or "none is installed"
        raise DeviceError(
            f"No device is available. Considered: {considered}. Run `{pip_install_command('aethermind-cpu')}`."
        )

    def _warn_of_failures(self, chosen: str, broken: list[str]) -> None:
        """Warn about broken devices and plugins, since `auto` may not have chosen the device that its user expects."""
        failed = [f"{name}: {_clause(reason)}" for name, reason in sorted(self._failures.items())]
        if broken or failed:
            missing = "; ".join(broken + failed)
            logger.warning("Running on %s without %s. `aethermind doctor` gives details.", chosen, missing)


def _guarded_probe(probe: Callable[[], Probe]) -> Callable[[], Probe]:
    def guarded() -> Probe:
        try:
            result = probe()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit included
            return Probe(0, f"its probe raised {describe_exception(error)}", is_broken=True)
        if not isinstance(result, Probe):
            return Probe(0, f"its probe returned {type(result).__name__} instead of a Probe.", is_broken=True)
        return result

    return guarded


def _guarded_open(name: str, open: Callable[[], Backend]) -> Callable[[], Backend]:
    def guarded() -> Backend:
        try:
            backend = open()
        except (AetherMindError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit included
            raise DeviceError(
                f"Device {name!r} could not be opened: {describe_exception(error)} "
                "Run `aethermind doctor`, or name another device."
            ) from error
        if not isinstance(backend, Backend):
            raise DeviceError(
                f"Device {name!r} could not be opened: its open() returned {type(backend).__name__} instead of a "
                "Backend. Run `aethermind doctor`, or name another device."
            )
        return backend

    return guarded


def _clause(text: str) -> str:
    """Strip a reason's full stop, so that a sentence can continue after it."""
    return text.rstrip(". ")
