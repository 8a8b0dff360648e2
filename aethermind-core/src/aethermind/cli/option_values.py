"""What shells offer as the value of an option."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["VARIABLE", "device_names", "model_names", "one_of"]

VARIABLE = "_AETHERMIND_COMPLETE"
"""Set by the scripts of `aethermind completion` when they ask what may come next."""


def one_of(*values: str) -> Callable[[str], list[str]]:
    """The `autocompletion` of an option that takes one of these."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Installed models; where none begins like that, the shell completes paths."""
    from aethermind.runtime import Runtime

    return one_of(*Runtime.boot().models.names())(incomplete)


def device_names(incomplete: str) -> list[str]:
    """`auto` and the devices of installed packages."""
    from aethermind.runtime import Runtime

    return one_of("auto", *(entry.name for entry in Runtime.boot().devices))(incomplete)
