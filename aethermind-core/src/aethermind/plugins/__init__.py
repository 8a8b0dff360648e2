"""How packages join: hook specifications and the discovery of what is installed."""

from aethermind.plugins.deprecation import DeprecatedUseWarning
from aethermind.plugins.hookspecs import CONTRACT_VERSION, ENTRY_POINT_GROUP, hookimpl

__all__ = ["CONTRACT_VERSION", "DeprecatedUseWarning", "ENTRY_POINT_GROUP", "hookimpl"]
