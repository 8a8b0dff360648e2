"""KVCache in its three layouts against a model of memory: any operations in any order, with one group of layers, and
with groups whose windows free blocks.

50 runs of 50 steps; `make nightly` makes 5,000 of 100.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.core.cache.memories import LAYOUTS, Memory
from tests.core.cache.sequence_rules import SequenceRules
from tests.scale import is_extended, scaled

from aethermind.cache import BlockPool, CacheState, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec, groups
from aethermind.cache.groups import LayerGroup
from aethermind.cache.layers import Paged, Window
from aethermind.cache.prefix_cache import chain_hash

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


def poor_hash(parent: bytes, content: bytes) -> bytes:
    """Two bits: nearly everything collides."""
    return bytes([chain_hash(parent, content)[0] % 4])


class WindowGroupsMachine(SequenceRules):
    """Sequences of several groups; kernels read keys one by one or in blocks of up to 4, and slack is small."""

    sequences = SequenceRules.sequences

    @initialize(
        layout=st.sampled_from(["cell", "paged"]),
        windows=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        key_block=st.sampled_from([1, 2, 4]),
        slack=st.integers(0, 3),
        block_size=st.integers(1, 5),
        num_blocks=st.integers(2, 9),
        num_host_blocks=st.integers(1, 15),
        threshold=st.sampled_from([0.0, 0.5, 1.0]),
        is_poor=st.booleans(),
    )
    def start(
        self,
        layout: Any,
        windows: list[int],
        key_block: int,
        slack: int,
        block_size: int,
        num_blocks: int,
        num_host_blocks: int,
        threshold: float,
        is_poor: bool,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(groups, "_KEY_BLOCK", key_block)
        self.patch.setattr(groups, "_SLACK", slack)
        num_blocks *= {"cell": 16, "paged": 6}[layout]
        in_a_block = {"cell": 1, "paged": block_size}[layout]
        self.memory = Memory(num_blocks, in_a_block, num_host_blocks)
        self.store = HostSwapStore(self.memory, num_host_blocks)
        pool = BlockPool(num_blocks)
        spec = KVCacheSpec(
            (Paged(1, 8, 8), *(Window(1, 8, 8, window) for window in windows)),
            "float32",
            block_size,
            groups=(LayerGroup(0, (0,)), *(LayerGroup(one, (layer,)) for layer, one in enumerate(windows, start=1))),
            max_new_tokens=6,
        )
        self.prefixes = HashedPrefixCache(
            pool, in_a_block, hash=poor_hash if is_poor else chain_hash, windows=spec.windows
        )
        self.cache = KVCache(
            spec,
            num_blocks,
            2 * MAX_MODEL_LEN,
            layout,
            prefix_cache=self.prefixes,
            swap_store=self.store,
            swap_threshold=threshold,
            pool=pool,
        )

    @rule(name=sequences, tokens=st.lists(st.integers(0, 1), min_size=5, max_size=9))
    def grow(self, name: str, tokens: list[int]) -> None:
        self.write(name, tokens, len(tokens))

    @rule(name=sequences, fraction=st.floats(0, 1))
    def truncate_or_reset(self, name: str, fraction: float) -> None:
        num_tokens = int(len(self.held[name]) * fraction)
        if self.cache.state(name) is CacheState.ACTIVE:
            expected = num_tokens if self.may_truncate(name, num_tokens) else 0
            assert self.cache.truncate_or_reset(name, num_tokens) == expected
            del self.held[name][expected:]

    @rule(target=sequences, parent=sequences, token=st.integers(0, 1))
    def fork_and_write(self, parent: str, token: int) -> Any:
        child = self.fork(parent)
        if child in self.held:
            self.write(child, [token], 1)
            self.write(parent, [1 - token], 1)
        return child

    @invariant()
    def no_sequence_holds_more_than_its_share(self) -> None:
        if hasattr(self, "cache"):
            for name, held in self.held.items():
                assert len(self.held_blocks(name)) <= self.cache.num_groups * -(-(len(held) + 9) // self.block_size)

    @rule(num_blocks=st.integers(0, 3))
    def evict(self, num_blocks: int) -> None:
        num_free, num_idle = self.pool.num_free, self.pool.num_idle
        self.prefixes.evict(num_blocks)
        assert self.pool.num_free >= num_free + min(num_blocks, num_idle)
        assert self.pool.num_free + self.pool.num_idle == num_free + num_idle

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.release_all()
            self.check_whole()
            assert self.prefixes.num_blocks == 0
            self.patch.undo()


KVCacheMachine.TestCase.settings = settings(
    max_examples=scaled(5000), stateful_step_count=100 if is_extended() else 50, deadline=None
)
TestKVCacheMachine = KVCacheMachine.TestCase
WindowGroupsMachine.TestCase.settings = KVCacheMachine.TestCase.settings
TestWindowGroupsMachine = WindowGroupsMachine.TestCase
