"""KVCache in its three layouts against a model of memory: any operations in any order.

50 runs of 50 steps; `make nightly` makes 5,000 of 100.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from tests.core.cache.memories import LAYOUTS, Memory
from tests.core.cache.sequence_rules import SequenceRules
from tests.scale import is_extended, scaled

from aethermind.cache import BlockPool, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec

MAX_MODEL_LEN = 14


class KVCacheMachine(SequenceRules):
    """Sequences alone."""

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        block_size=st.integers(1, 5),
        num_blocks=st.integers(2, 9),
        num_host_blocks=st.integers(1, 9),
        threshold=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def start(self, layout: Any, block_size: int, num_blocks: int, num_host_blocks: int, threshold: float) -> None:
        num_blocks *= {"static": 1, "cell": 4, "paged": 2}[layout]
        in_a_block = {"static": MAX_MODEL_LEN, "cell": 1, "paged": block_size}[layout]
        self.memory = Memory(num_blocks, in_a_block, num_host_blocks)
        self.store = HostSwapStore(self.memory, num_host_blocks)
        pool = BlockPool(num_blocks)
        self.prefixes = HashedPrefixCache(pool, in_a_block)
        self.cache = KVCache(
            KVCacheSpec.uniform(1, 1, 8, "float32", block_size),
            num_blocks,
            MAX_MODEL_LEN,
            layout,
            prefix_cache=self.prefixes,
            swap_store=self.store,
            swap_threshold=threshold,
            pool=pool,
        )
        assert self.cache.spec.block_size == in_a_block

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.release_all()
            self.check_whole()


KVCacheMachine.TestCase.settings = settings(
    max_examples=scaled(5000), stateful_step_count=100 if is_extended() else 50, deadline=None
)
TestKVCacheMachine = KVCacheMachine.TestCase
