"""A registry as one plugin sees it: what it registers is written into its record, and its probes are kept apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aethermind.plugins.discovery import PluginRecord

if TYPE_CHECKING:
    from aethermind.hal.device import Probe

__all__ = ["DeviceRegistration", "Registration"]


class Registration:
    """Passes everything on to a registry, and notes the name of what `register` accepted."""

    def __init__(self, registry: Any, record: PluginRecord, kind: str) -> None:
        self._registry = registry
        self._record = record
        self._kind = kind

    def register(self, *what: Any, **how: Any) -> None:
        """The registry's own `register`."""
        self._registry.register(*what, **how)
        names = how.get("names") or [what[0] if what else next(iter(how.values()))]
        self._record.registered.setdefault(self._kind, []).extend(_name_of(name) for name in names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)


class DeviceRegistration(Registration):
    """Probes of packages that are not released with the core run in a process of their own."""

    def register(self, name: str, *, probe: Callable[[], Probe], **rest: Any) -> None:
        if not self._record.is_ours:
            from aethermind.hal.isolated_probe import IsolatedProbe

            isolated = IsolatedProbe(self._record, name, probe)
            probe, rest["recall"] = isolated.ask, isolated.recall
        super().register(name, probe=probe, **rest)


def _name_of(thing: Any) -> str:
    return thing if isinstance(thing, str) else str(thing.name)
