"""Weights in kernels' layouts, kept on disk: the next process that wants the same maps them instead of packing."""

from __future__ import annotations

from aethermind.engine.weight_cache.folder import WeightFolder
from aethermind.engine.weight_cache.weight_cache import WeightCache

__all__ = ["WeightCache", "WeightFolder"]
