"""The plugin system: hook specifications, and the discovery of installed packages that implement them."""

from aethermind.plugins.compatibility import DeprecatedUseWarning, deprecated_names
from aethermind.plugins.hookspecs import API_VERSION, ENTRY_POINT_GROUP, hookimpl

__getattr__ = deprecated_names(__name__, {"CONTRACT_VERSION": ("API_VERSION", API_VERSION)})

__all__ = ["API_VERSION", "DeprecatedUseWarning", "ENTRY_POINT_GROUP", "hookimpl"]
