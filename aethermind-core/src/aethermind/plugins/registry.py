"""A registry: names that packages claim for objects, each imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from aethermind.errors import AetherMindError, ConfigError, PluginError, did_you_mean
from aethermind.plugins.stdout_guard import stdout_to_stderr

__all__ = ["Registry", "import_object"]

T = TypeVar("T")

_MAX_LISTED = 17
"""Maximum number of installed names in a message about an unknown one: those that resemble it most."""


@dataclass(frozen=True, slots=True)
class _Entry:
    target: str
    provider: str


class Registry(Generic[T]):
    """Maps names to objects of type `T`, given as `"package.module:OBJECT"`. Filled at boot, then frozen."""

    def __init__(
        self,
        kind: str,
        setting: str,
        *,
        error: type[AetherMindError] = ConfigError,
        advice: str | Callable[[str], str] = "Choose one of them, or install the package that provides it.",
    ) -> None:
        """Make an empty registry.

        Args:
            kind: the kind of objects, capitalised, for messages about two packages that claim one name.
            setting: the same in the users' words, for messages about unknown names.
            error: the class of the error for an unknown name.
            advice: the end of that error's message, or a function that returns it for the unknown name.
        """
        self.kind = kind
        self._setting = setting
        self._error = error
        self._advice = advice
        self._entries: dict[str, _Entry] = {}
        self._is_frozen = False

    def register(self, name: str, target: str, *, provider: str, replaces: str | None = None) -> None:
        """Register a name for the object `target`, `"package.module:OBJECT"`, of the package `provider`.

        PluginError for a name that is registered, unless `replaces=` names the package that did it.
        """
        assert not self._is_frozen, "registries are frozen after boot"
        existing = self._entries.get(name)
        if existing is not None and replaces != existing.provider:
            raise PluginError(
                f"{self.kind} {name!r} is claimed by both {existing.provider} and {provider}. Uninstall one of them."
            )
        self._entries[name] = _Entry(target, provider)

    def provider(self, name: str) -> str | None:
        """Return the package that has registered a name, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.provider

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._entries)

    def find(self, name: str) -> T | None:
        """Import the object of a name, or return None for an unknown one."""
        entry = self._entries.get(name)
        found: T | None = None if entry is None else import_object(entry.target)
        return found

    def get(self, name: str) -> T:
        """Import the object of a name; the error for an unknown one lists installed names and the nearest one."""
        found = self.find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> AetherMindError:
        names = self.names()
        advice = self._advice if isinstance(self._advice, str) else self._advice(name)
        listed = ", ".join(sorted(get_close_matches(name, names, _MAX_LISTED, cutoff=0))) or "none"
        if len(names) > _MAX_LISTED:
            count = len(names) - _MAX_LISTED
            listed += f" and {count} other{'s' if count > 1 else ''}"
        return self._error(f"Unknown {self._setting} {name!r}. Installed: {listed}{did_you_mean(name, names)} {advice}")


def import_object(target: str) -> Any:
    """Import and return the object at `"package.module:OBJECT"`; what the import prints goes to standard error."""
    module, _, attribute = target.partition(":")
    with nullcontext() if module in sys.modules else stdout_to_stderr():  # only the first import can print
        return getattr(import_module(module), attribute)
