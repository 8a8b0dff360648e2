"""Settings from a file, from environment variables and from flags: merging, checking and printing them.

The settings themselves are declared by the caller: `aethermind.cli.settings` for the command line, and
`aethermind.engine.config` for an engine.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Configuration", "Section", "Setting", "SettingValue", "resolve", "setting"]

_MODULES = {
    "Configuration": "aethermind.config.configuration",
    "Section": "aethermind.config.section",
    "Setting": "aethermind.config.section",
    "SettingValue": "aethermind.config.configuration",
    "resolve": "aethermind.config.configuration",
    "setting": "aethermind.config.section",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
