"""Groups of layers: how they are chosen, what they cost, and which blocks a long sequence holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.cache import BlockPool, CacheOutcome, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.cache.groups import FREED, LayerGroup, group_layers
from aethermind.cache.layers import LayerCache, Paged, Shared, Window
from aethermind.cache.reservations import reserve_chunk
from aethermind.errors import InvalidArgumentError

FULL, SHORT, LONG = Paged(1, 256, 256), Window(1, 256, 256, 512), Window(1, 256, 256, 4096)
GEMMA_3_1B = tuple(FULL if layer % 6 == 5 else SHORT for layer in range(26))


def spec_of(layers: tuple[LayerCache, ...], max_model_len: int, block_size: int = 16, most: int = 1) -> KVCacheSpec:
    groups = group_layers(layers, block_size, max_model_len, most)
    return KVCacheSpec(layers, "bfloat16", block_size, groups=groups, max_new_tokens=most)


def sizes(layers: tuple[LayerCache, ...], max_model_len: int = 32768) -> list[tuple[int, int]]:
    return [(group.window, len(group.layers)) for group in spec_of(layers, max_model_len).groups]


def test_gemma_3_has_one_full_group_and_six_of_windows() -> None:
    spec = spec_of(GEMMA_3_1B, 32768)
    assert spec.groups[0] == LayerGroup(0, (5, 11, 17, 23))
    assert sizes(GEMMA_3_1B) == [(0, 4), *[(512, 4)] * 5, (512, 2)]
    assert sorted(layer for group in spec.groups for layer in group.layers) == list(range(26))


@pytest.mark.parametrize("block_size", [16, 64, 24])
def test_gemma_3_at_32k_tokens_holds_all_of_full_layers_and_windows_of_the_others(block_size: int) -> None:
    spec = spec_of(GEMMA_3_1B, 32768, block_size)
    num_bytes = spec.num_blocks_for(32768) * spec.bytes_per_block
    a_layer = 2 * 256 * 2
    num_partial = 1 if 128 % block_size == 0 else 2
    whole = -(-32768 // block_size) * block_size
    assert num_bytes <= a_layer * (4 * whole + 6 * 4 * (512 + 256 + num_partial * block_size))
    assert num_bytes < 0.3 * 26 * a_layer * 32768


def test_layers_of_windows_alone_are_divided_too() -> None:
    """Group 0 keeps all tokens, so some of them are in it: few enough that others save most."""
    found = sizes((LONG,) * 32)
    assert found == [(0, 4), *[(4096, 4)] * 7]


def test_every_window_has_groups_of_its_own() -> None:
    assert sizes((FULL, SHORT, LONG, FULL, SHORT, LONG)) == [(0, 2), (512, 2), (4096, 2)]


@pytest.mark.parametrize(
    ("layers", "max_model_len"),
    [
        ((FULL,) * 4, 32768),
        ((FULL, Window(2, 256, 256, 512)), 32768),
        (GEMMA_3_1B, 512),
        (GEMMA_3_1B, 800),
        ((FULL,) * 20 + (SHORT,), 32768),
        ((FULL, Shared(0), SHORT, Shared(2)), 700),
    ],
    ids=["no windows", "other shapes", "windows see all", "short contexts", "little to save", "short and shared"],
)
def test_layers_are_one_group_where_groups_would_not_help(layers: tuple[LayerCache, ...], max_model_len: int) -> None:
    assert spec_of(layers, max_model_len).groups == KVCacheSpec(layers, "bfloat16", 16).groups
    assert len(spec_of(layers, max_model_len).groups) == 1


def test_a_layer_that_shares_is_in_the_group_of_the_one_it_reads() -> None:
    spec = spec_of((FULL, SHORT, Shared(1), Shared(0)), 32768)
    assert [spec.group_and_position(layer) for layer in range(4)] == [(0, 0), (1, 0), (1, 0), (0, 0)]
    assert spec.tensor_layers == (0,)


@pytest.mark.parametrize(
    "groups",
    [
        (LayerGroup(0, (0,)),),
        (LayerGroup(0, (0, 1)), LayerGroup(512, (1,))),
        (LayerGroup(512, (0, 1)),),
        (LayerGroup(0, (0,)), LayerGroup(0, (1,))),
    ],
)
def test_groups_that_do_not_divide_the_layers_are_refused(groups: tuple[LayerGroup, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="do not divide the layers"):
        KVCacheSpec((FULL, SHORT), "bfloat16", 16, groups=groups)


@given(
    windows=st.lists(st.integers(1, 300), max_size=3),
    block_size=st.integers(1, 40),
    most=st.integers(1, 100),
    num_blocks=st.integers(0, 400),
)
def test_the_longest_sequence_of_a_pool_is_the_opposite_of_its_blocks(
    windows: list[int], block_size: int, most: int, num_blocks: int
) -> None:
    layers = (FULL, *(Window(1, 256, 256, window) for window in windows))
    groups = (LayerGroup(0, (0,)), *(LayerGroup(window, (layer,)) for layer, window in enumerate(windows, start=1)))
    spec = KVCacheSpec(layers, "bfloat16", block_size, groups=groups, max_new_tokens=most)
    longest = spec.num_tokens_in(num_blocks)
    assert spec.num_blocks_for(longest) <= num_blocks < spec.num_blocks_for(longest + 1)


@pytest.mark.parametrize(("block_size", "window", "chunk"), [(16, 64, 1), (16, 64, 512), (1, 64, 100), (24, 100, 33)])
def test_a_long_sequence_holds_the_blocks_that_its_windows_see(block_size: int, window: int, chunk: int) -> None:
    layers = (FULL, *[Window(1, 256, 256, window)] * 3)
    spec = spec_of(layers, 4096, block_size, chunk)
    assert [group.window for group in spec.groups] == [0, *[window] * 3]
    pool = BlockPool(spec.num_blocks_for(4096))
    prefixes = HashedPrefixCache(pool, block_size, windows=spec.windows)
    cache = KVCache(spec, pool.num_blocks, 4096, prefix_cache=prefixes, pool=pool)
    assert cache.capacity_tokens == 4096
    cache.open("a")
    for num_tokens in range(0, 4096, chunk):
        count = min(chunk, 4096 - num_tokens)
        assert cache.reserve("a", count).outcome is CacheOutcome.OK
        hidden = max(num_tokens - window + 1 - 128, 0) // 128 * 128 // block_size
        last = -(-(num_tokens + count) // block_size)
        if count >= block_size or num_tokens % block_size == 0:  # otherwise there are slots left
            assert pool.num_used == last + 3 * (last - hidden)
        assert pool.num_used <= spec.num_blocks_for(num_tokens + count)
        cache.commit("a", count)
    assert cache.block_table("a", 2).count(FREED) > 0
    assert FREED not in cache.block_table("a")
    assert set(cache.held_blocks("a")) == {
        block for group in range(4) for block in cache.block_table("a", group) if block != FREED
    }
    assert cache.truncate("a", 200) is CacheOutcome.BEHIND_WINDOW
    assert (cache.truncate_or_reset("a", 4000), cache.truncate_or_reset("a", 200)) == (4000, 0)
    assert pool.num_used == 0


def test_gemma_3_at_32k_tokens_fits_into_150_mib_with_chunks_of_512() -> None:
    """Chunks shrink when the last blocks of the pool are in use, which is at the end of the prompt."""
    spec = spec_of(GEMMA_3_1B, 32768, most=64)
    pool = BlockPool(spec.num_blocks_for(32768))
    assert pool.num_blocks * spec.bytes_per_block <= 150 * 2**20
    prefixes = HashedPrefixCache(pool, 16, windows=spec.windows)
    cache = KVCache(spec, pool.num_blocks, 32768, prefix_cache=prefixes, pool=pool)
    tokens, chunks = list(range(32768)), list[int]()
    cache.open("a")
    while (num_tokens := cache.num_tokens("a")) < 32768:
        result, count = reserve_chunk(cache, "a", min(512, 32768 - num_tokens))
        assert result.outcome is CacheOutcome.OK
        cache.commit("a", count)
        cache.publish("a", tokens[: num_tokens + count])
        chunks.append(count)
    assert chunks.count(512) >= 56
    assert all(64 <= count <= 512 and count % 16 == 0 for count in chunks)
    assert sum(count for count in chunks if count < 512) < 4096
    assert len(chunks) < 90


def test_a_chunk_without_windows_is_not_shortened() -> None:
    cache = KVCache(spec_of((FULL,), 1024, most=8), 4, 1024)
    cache.open("a")
    result, count = reserve_chunk(cache, "a", 80)
    assert (result.outcome, count) == (CacheOutcome.NO_FREE_BLOCKS, 80)


def test_a_sequence_takes_back_what_speculation_adds_without_loss() -> None:
    spec = spec_of((FULL, SHORT), 32768, 16, 129)
    cache = KVCache(spec, spec.num_blocks_for(32768), 32768)
    cache.open("a")
    for num_tokens in (2000, *range(2001, 2400)):
        cache.reserve("a", num_tokens - cache.num_tokens("a"))
        cache.commit("a", num_tokens - cache.num_tokens("a"))
        cache.reserve("a", 128)
        cache.commit("a", 128)
        cache.reserve("a", 1)
        assert cache.truncate_or_reset("a", num_tokens) == num_tokens


def test_evicting_a_companion_leaves_a_shorter_prefix_that_can_be_reused() -> None:
    spec = spec_of((FULL, Window(1, 256, 256, 64)), 4096, 16, 512)
    pool = BlockPool(2 * spec.num_blocks_for(4096))
    prefixes = HashedPrefixCache(pool, 16, windows=spec.windows)
    cache = KVCache(spec, pool.num_blocks, 4096, prefix_cache=prefixes, pool=pool)
    tokens = list(range(1024))
    cache.open("a")
    for begin in range(0, 1024, 256):
        cache.reserve("a", 256)
        cache.commit("a", 256)
        cache.publish("a", tokens[: begin + 256])
    assert cache.query(tokens) == 1008
    assert cache.query([*tokens[:500], -1]) == 496
    cache.release("a", tokens)
    first_idle = pool.eviction_candidate()
    prefixes.evict(1)
    assert pool.ref_count(first_idle) == 0
    assert cache.query(tokens) == 1008, "a block behind the window was evicted"
    held = cache.open("b", [*tokens[:700], -1]).num_cached_tokens
    assert held == 688
    assert cache.block_table("b", 1).count(FREED) == (688 - 64 + 1) // 128 * 128 // 16
    cache.release("b")
    prefixes.evict(pool.num_blocks)
    assert (pool.num_free, prefixes.num_blocks) == (pool.num_blocks, 0)
