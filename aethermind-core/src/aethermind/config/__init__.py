"""Settings from a file, from variables and from flags: who gave which value, and what is wrong with it.

This package knows how; what can be set is the table of whoever asks (`cli.sections` for the command line).
"""

from __future__ import annotations

from typing import Any

__all__ = ["Configuration", "Section", "Setting", "Value", "resolve", "setting"]

_HOMES = {
    "Configuration": "aethermind.config.layers",
    "Section": "aethermind.config.section",
    "Setting": "aethermind.config.section",
    "Value": "aethermind.config.layers",
    "resolve": "aethermind.config.layers",
    "setting": "aethermind.config.section",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
