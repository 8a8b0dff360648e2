"""Compatibility of plugins with this core: the choice of a plugin API version, and warnings about deprecated use.

The plugin API has a version, the number in the name of an entry point's group. This core supports the versions
`OLDEST_API_VERSION` to `API_VERSION`. A plugin offers one entry point for each version that it supports, and the newest
version that both support is used. A new version may add hooks, and arguments to hooks, which an older plugin need not
name. A hook that a version drops remains in `HookSpecs` until `OLDEST_API_VERSION` has passed the last version that had
it, so a plugin for version N-1 works unchanged with a core of version N.

docs/extending/stability.md lists what remains available for how long.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from aethermind.plugins import hookspecs

__all__ = [
    "DeprecatedUseWarning",
    "Negotiation",
    "collecting_deprecations",
    "deprecated",
    "deprecated_fields",
    "deprecated_names",
    "deprecation_text",
    "negotiate",
]

_Class = TypeVar("_Class")

_collected_texts: ContextVar[list[str] | None] = ContextVar("collected_texts", default=None)


@dataclass(frozen=True, slots=True)
class Negotiation:
    """The plugin API version that a plugin and this core use, or the reason why there is none and what to do about it.

    `summary` describes the result in one sentence.
    """

    api_version: str
    summary: str
    error: str | None = None
    advice: str = ""


def negotiate(offered: Sequence[str], distribution: str) -> Negotiation:
    """Choose an API version that a plugin of this package offers; one that is not a number counts as newer."""
    oldest, newest = hookspecs.OLDEST_API_VERSION, hookspecs.API_VERSION
    numbers = sorted(int(version) for version in offered if version.isdecimal())
    supported = [number for number in numbers if oldest <= number <= newest]
    offered_text = f"it supports plugin API {_enumeration([str(number) for number in numbers] or sorted(offered))}"
    supported_text = f"this core supports {newest}" if oldest == newest else f"this core supports {oldest} to {newest}"
    if supported:
        chosen = supported[-1]
        remark = "" if chosen == newest else ", an older one, which still works"
        return Negotiation(str(chosen), f"{offered_text}, {supported_text}; they use {chosen}{remark}.")
    error = f"{offered_text}, {supported_text}."
    if numbers and numbers[-1] < oldest:
        advice = f"Install a newer {distribution}, made for plugin API {newest}: pip install --upgrade {distribution}."
    else:
        advice = (
            "Install a newer core (pip install --upgrade aethermind-core), or a version of "
            f"{distribution} made for plugin API {newest}."
        )
    return Negotiation(str(numbers[-1]) if numbers else offered[0], error, error, advice)


class DeprecatedUseWarning(DeprecationWarning):
    """Warns that code uses a name that a later version of the core removes."""


def deprecated(what: str, *, instead: str, until: str, stacklevel: int = 3) -> None:
    """Warn that version `until` removes `what`, at the line that uses it.

    The deprecated function calls this. While a plugin is loaded or one of its hooks runs, the text is also added
    to its record. The default `stacklevel` points to the caller of the function that calls this.
    """
    message = deprecation_text(what, instead=instead, until=until)
    texts = _collected_texts.get()
    if texts is not None and message not in texts:
        texts.append(message)
    warnings.warn(message, DeprecatedUseWarning, stacklevel=stacklevel)


def deprecated_names(
    module: str, renamed: Mapping[str, tuple[str, object]], *, until: str = "0.4"
) -> Callable[[str], object]:
    """Make a module's `__getattr__` that serves old public names with a warning, until a version of the core.

    `renamed` maps an old name to the new name and its object.
    """

    def find(name: str) -> object:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_name, value = renamed[name]
        deprecated(f"{module}.{name}", instead=new_name, until=until)
        return value

    return find


def deprecated_fields(*, until: str, **renamed: str) -> Callable[[type[_Class]], type[_Class]]:
    """Decorate a class: former names of its fields still work, as keyword arguments and attributes, with a warning.

    `renamed` maps an old name to the new one.
    """

    def decorate(cls: type[_Class]) -> type[_Class]:
        init: Callable[..., None] = cls.__init__

        def warn(old: str) -> str:
            """Warn about a former name, and return the new one."""
            new = renamed[old]
            deprecated(f"{cls.__name__}.{old}", instead=f"{cls.__name__}.{new}", until=until, stacklevel=4)
            return new

        @wraps(init)
        def init_with_old_names(self: object, *arguments: Any, **named: Any) -> None:
            for old in renamed.keys() & named.keys():
                named[warn(old)] = named.pop(old)
            init(self, *arguments, **named)

        def alias(old: str) -> property:
            return property(lambda self: getattr(self, warn(old)))

        cls.__init__ = init_with_old_names  # type: ignore[method-assign]
        for old in renamed:
            setattr(cls, old, alias(old))
        return cls

    return decorate


def deprecation_text(what: str, *, instead: str, until: str) -> str:
    """Return the text of a deprecation warning."""
    return f"{what} is removed in version {until}; use {instead}."


@contextmanager
def collecting_deprecations(texts: list[str]) -> Iterator[None]:
    """Append the text of each deprecation warning within this block to `texts`, each text once."""
    token = _collected_texts.set(texts)
    try:
        yield
    finally:
        _collected_texts.reset(token)


def _enumeration(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
