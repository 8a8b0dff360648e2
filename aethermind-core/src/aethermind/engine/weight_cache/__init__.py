"""A disk cache of packed weights, in kernels' layouts: later processes map them instead of packing again."""

from __future__ import annotations

from aethermind.engine.weight_cache.folder import WeightFolder
from aethermind.engine.weight_cache.weight_cache import WeightCache

__all__ = ["WeightCache", "WeightFolder"]
