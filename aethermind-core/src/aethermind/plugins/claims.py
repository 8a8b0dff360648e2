"""Names that plugins claim for objects of theirs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aethermind.errors import ConfigError, PluginError
from aethermind.plugins.stdout_guard import stdout_to_stderr

__all__ = ["Claims", "import_object"]


@dataclass(frozen=True, slots=True)
class _Entry:
    target: str
    provider: str


class Claims:
    """Names to `"package.module:OBJECT"`, imported when first used. Filled at boot, then frozen."""

    kind: str
    """What is claimed, as messages begin."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._is_frozen = False

    def register(self, name: str, target: str, *, provider: str, replaces: str | None = None) -> None:
        """Claim a name; a taken one is a PluginError unless `replaces=` names its provider."""
        assert not self._is_frozen, "registries are frozen after boot"
        taken = self._entries.get(name)
        if taken is not None and replaces != taken.provider:
            raise PluginError(
                f"{self.kind} {name!r} is claimed by both {taken.provider} and {provider}. Uninstall one of them."
            )
        self._entries[name] = _Entry(target, provider)

    def freeze(self) -> None:
        """Refuse claims from now on."""
        self._is_frozen = True

    def names(self) -> list[str]:
        """All names that installed packages claim, sorted."""
        return sorted(self._entries)

    def find_object(self, name: str) -> Any:
        """Import what a name stands for, or return None."""
        entry = self._entries.get(name)
        return None if entry is None else import_object(entry.target)

    def chosen_object(self, name: str, setting: str) -> Any:
        """Import what a setting names; ConfigError lists the installed ones when it is unknown."""
        if name not in self._entries:
            raise ConfigError(
                f"Unknown {setting} {name!r}. Installed: {', '.join(self.names())}. Choose one of them, or install the "
                "package that provides it."
            )
        return self.find_object(name)


def import_object(target: str) -> Any:
    """What `"package.module:OBJECT"` names."""
    module, _, attribute = target.partition(":")
    with nullcontext() if module in sys.modules else stdout_to_stderr():  # only the first import can print
        return getattr(import_module(module), attribute)
