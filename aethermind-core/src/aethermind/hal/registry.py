"""Which devices exist by name, and which one `auto` means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import AetherMindError, DeviceError, PluginError, in_words
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId, Probe
from aethermind.log import get_logger
from aethermind.plugins.first_party import how_to_get, pip_install

__all__ = ["DeviceEntry", "DeviceRegistry", "Selection"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One registered backend.

    `probe` asks whether the device is there and never raises; `recall` is what it answered in an earlier process, or
    None. `open` makes the backend, or raises an AetherMindError. `examine` opens it in a process of its own and says
    what `hal.isolated_open.facts_of` does; None where `open` is trusted. `auto` takes the available entry of highest
    `priority`, and never one whose priority is negative.
    """

    name: str
    priority: int
    probe: Callable[[], Probe]
    open: Callable[[], Backend]
    provider: str
    recall: Callable[[], Probe | None]
    examine: Callable[[], dict[str, Any]] | None = None


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
        recall: Callable[[], Probe | None] = lambda: None,
        examine: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Claim a device name; a taken one is a PluginError, unless `replaces=` names its provider.

        `recall` and `examine` are the runtime's, for a third party's devices.
        """
        assert not self._is_frozen, "registries are frozen after boot"
        taken = self._entries.get(name)
        if taken is not None and replaces != taken.provider:
            raise PluginError(
                f"Device {name!r} is claimed by both {taken.provider} and {provider}. "
                f"Uninstall one of them, or let one say replaces={taken.provider!r}."
            )
        self._entries[name] = DeviceEntry(
            name, priority, _guarded_probe(probe), _guarded_open(name, open), provider, recall, examine
        )

    def record_failure(self, plugin: str, reason: str) -> None:
        """Remember that a plugin failed, so that asking for a device it would have provided says why."""
        self._failures[plugin] = reason

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def __iter__(self) -> Iterator[DeviceEntry]:
        """Entries by priority, the highest first."""
        return iter(sorted(self._entries.values(), key=lambda entry: -entry.priority))

    def open(self, text: str) -> tuple[Selection, Backend]:
        """Select a device, open it and make it current; DeviceError says what is wrong with the name or the hardware.

        Where `auto` meets a device that cannot be opened it goes on to the next one, with a warning.
        """
        failed: dict[str, str] = {}
        while True:
            selection = self._select_automatically(failed) if text == "auto" else self.select(text)
            try:
                backend = selection.entry.open()
                backend.devices.set_current(selection.device.index)  # where its allocator hands out memory
                return selection, backend
            except AetherMindError as error:
                if text != "auto":
                    raise
                failed[selection.entry.name] = str(error)

    def select(self, text: str) -> Selection:
        """Resolve `auto`, `NAME` or `NAME:INDEX`; DeviceError with the reason when it is unknown or absent."""
        if text == "auto":
            return self._select_automatically({})
        device = DeviceId.parse(text)
        entry = self._entries.get(device.type)
        if entry is None:
            raise self._unknown(device, text)
        probe = entry.recall()
        if probe is None or not probe.is_available:  # whoever names a device may have repaired it since
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
            + how_to_get("device", device.type, otherwise="Name one of these.")
        )

    def _select_automatically(self, unopened: Mapping[str, str]) -> Selection:
        """The available device of highest priority, but for those that could not be opened, each with the reason."""
        passed_over: list[str] = []
        broken: list[str] = []
        for entry in self:
            if entry.priority < 0:
                break
            if entry.name in unopened:
                passed_over.append(f"{entry.name}: {_clause(unopened[entry.name])}")
                broken.append(passed_over[-1])
                continue
            probe = entry.recall() or entry.probe()
            if probe.is_available:
                others = "".join(f"; passed over {other}" for other in passed_over)
                self._warn_of_failures(entry.name, broken)
                reason = f"highest priority ({entry.priority}) of the available devices{others}"
                return Selection(DeviceId(entry.name), entry, reason)
            passed_over.append(f"{entry.name}: {_clause(probe.reason)}")
            if probe.is_broken:
                broken.append(passed_over[-1])
        considered = "; ".join(passed_over) or "none is installed"
        raise DeviceError(f"No device is available. Considered: {considered}. Run `{pip_install('aethermind-cpu')}`.")

    def _warn_of_failures(self, chosen: str, broken: list[str]) -> None:
        """Where something is wrong, `auto` may not have chosen what its user has in mind, and they are told."""
        failed = [f"{name}: {_clause(reason)}" for name, reason in sorted(self._failures.items())]
        if broken or failed:
            missing = "; ".join(broken + failed)
            logger.warning("Running on %s without %s. `aethermind doctor` tells more.", chosen, missing)


def _guarded_probe(probe: Callable[[], Probe]) -> Callable[[], Probe]:
    def guarded() -> Probe:
        try:
            answer = probe()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit included
            return Probe(0, f"its probe raised {in_words(error)}", is_broken=True)
        if not isinstance(answer, Probe):
            return Probe(0, f"its probe returned {type(answer).__name__} instead of a Probe.", is_broken=True)
        return answer

    return guarded


def _guarded_open(name: str, open: Callable[[], Backend]) -> Callable[[], Backend]:
    def guarded() -> Backend:
        try:
            backend = open()
        except (AetherMindError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit included
            raise DeviceError(
                f"Device {name!r} could not be opened: {in_words(error)} "
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
    """A reason without its full stop, to go on from."""
    return text.rstrip(". ")
