"""A registry as one package sees it: what it registers is noted, and a third party's devices are kept apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.hal.backend import Backend
    from aethermind.hal.device import Probe
    from aethermind.plugins.discovery import PluginRecord

__all__ = ["DeviceRegistration", "Registration"]


class Registration:
    """Passes everything on to a registry, and notes the name of what `register` accepted, by kind in `registered`."""

    def __init__(self, registry: Any, registered: dict[str, list[str]], kind: str) -> None:
        self._registry = registry
        self._registered = registered
        self._kind = kind

    def register(self, *what: Any, **how: Any) -> None:
        """The registry's own `register`."""
        self._registry.register(*what, **how)
        names = how.get("names") or [what[0] if what else next(iter(how.values()))]
        self._registered.setdefault(self._kind, []).extend(_name_of(name) for name in names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)


class DeviceRegistration(Registration):
    """A third party's devices: they are probed, and opened for the first time, in a process of their own."""

    def __init__(self, registry: Any, record: PluginRecord) -> None:
        super().__init__(registry, record.registered, "devices")
        self._record = record

    def register(self, name: str, *, probe: Callable[[], Probe], open: Callable[[], Backend], **rest: Any) -> None:
        from aethermind.hal.isolated_open import IsolatedOpen
        from aethermind.hal.isolated_probe import IsolatedProbe

        asked, opened = IsolatedProbe(self._record, name, probe), IsolatedOpen(self._record, name, open)
        kept = {"recall": asked.recall, "examine": opened.examine}
        super().register(name, probe=asked.ask, open=opened.open, **kept, **rest)


def _name_of(thing: Any) -> str:
    return thing if isinstance(thing, str) else str(thing.name)
