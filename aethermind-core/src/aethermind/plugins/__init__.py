"""The plugin system: hook specifications, and the discovery of installed packages that implement them."""

from aethermind.plugins.compatibility import DeprecatedUseWarning
from aethermind.plugins.hookspecs import CONTRACT_VERSION, ENTRY_POINT_GROUP, hookimpl

__all__ = ["CONTRACT_VERSION", "DeprecatedUseWarning", "ENTRY_POINT_GROUP", "hookimpl"]
