"""Compatibility between a plugin and this core: contract negotiation, and notes about deprecated use.

A contract is a number in the name of an entry point's group. This core speaks `OLDEST_CONTRACT` to `CONTRACT_VERSION`.
A plugin offers one entry point for each contract that it was made for, and the newest contract that both know is used.
A new contract may add hooks, and arguments to hooks, which an older plugin need not name. A hook that a contract drops
remains in `HookSpecs` until `OLDEST_CONTRACT` has passed the last contract that had it, so a plugin for contract N-1
works unchanged with a core of contract N.

docs/extending/stability.md lists what remains available for how long.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from aethermind.plugins import hookspecs

__all__ = ["DeprecatedUseWarning", "Negotiation", "deprecated", "deprecated_names", "negotiate", "noting", "sentence"]

_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


@dataclass(frozen=True, slots=True)
class Negotiation:
    """The result of a negotiation: the contract to use, or the reason why there is none and what to do about it.

    `words` describes the result in one sentence.
    """

    contract: str
    words: str
    error: str | None = None
    advice: str = ""


def negotiate(offered: Sequence[str], distribution: str) -> Negotiation:
    """Choose among the contracts that a plugin of this package offers; one that is not a number counts as newer."""
    oldest, newest = hookspecs.OLDEST_CONTRACT, hookspecs.CONTRACT_VERSION
    numbers = sorted(int(contract) for contract in offered if contract.isdecimal())
    spoken = [number for number in numbers if oldest <= number <= newest]
    offer = f"it speaks plugin contract {_listed([str(number) for number in numbers] or sorted(offered))}"
    ours = f"this core speaks {newest}" if oldest == newest else f"this core speaks {oldest} to {newest}"
    if spoken:
        chosen = spoken[-1]
        age = "" if chosen == newest else ", an older one, which still works"
        return Negotiation(str(chosen), f"{offer}, {ours}; they use {chosen}{age}.")
    error = f"{offer}, {ours}."
    if numbers and numbers[-1] < oldest:
        advice = f"Install a newer {distribution}, made for contract {newest}: pip install --upgrade {distribution}."
    else:
        advice = (
            "Install a newer core (pip install --upgrade aethermind-core), or a version of "
            f"{distribution} made for contract {newest}."
        )
    return Negotiation(str(numbers[-1]) if numbers else offered[0], error, error, advice)


class DeprecatedUseWarning(DeprecationWarning):
    """Code uses something that a coming version of the core removes."""


def deprecated(what: str, *, instead: str, until: str, stacklevel: int = 3) -> None:
    """Warn that version `until` removes `what`, at the line that uses it.

    The deprecated function calls this. While a plugin is loaded or one of its hooks runs, the sentence also goes into
    its record. The default `stacklevel` points to the caller of the function that calls this.
    """
    message = sentence(what, instead=instead, until=until)
    notes = _noted.get()
    if notes is not None and message not in notes:
        notes.append(message)
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


def sentence(what: str, *, instead: str, until: str) -> str:
    """The text of a deprecation."""
    return f"{what} goes with version {until}; use {instead}."


@contextmanager
def noting(notes: list[str]) -> Iterator[None]:
    """Append a sentence to `notes` for every deprecated use within this block."""
    token = _noted.set(notes)
    try:
        yield
    finally:
        _noted.reset(token)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
