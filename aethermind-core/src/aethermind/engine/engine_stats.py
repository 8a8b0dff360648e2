"""What an engine is busy with, in numbers that cost nothing to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.engine.engine import Engine

__all__ = ["EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One moment of an engine. Blocks are those of the KV cache: `num_free_blocks` can be had at once, those that keep
    past prompts for reuse included.
    """

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV cache that open requests hold, from 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @classmethod
    def of(cls, engine: Engine) -> EngineStats:
        """Read them; from another thread than the engine's they may be of two neighbouring moments."""
        return cls(
            num_waiting=len(engine.waiting),
            num_running=len(engine.running),
            num_blocks=engine.planned.num_kv_blocks,
            num_free_blocks=engine.cache.num_available_blocks,
        )
