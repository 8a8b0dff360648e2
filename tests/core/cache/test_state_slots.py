"""Recurrent states in the cache: a slot for each sequence, from its first reservation to its end."""

from __future__ import annotations

import pytest
from tests.core.cache.memories import Memory

from aethermind.cache import BlockPool, CacheOutcome, CacheState, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec
from aethermind.cache.layers import Hybrid, Paged, Recurrent, Shared, Window
from aethermind.errors import InvalidArgumentError

STATE = Recurrent((("conv_state", (3, 8)), ("recurrent_state", (2, 4, 5))))
PAGED = Paged(1, 8, 8)


def cache(num_slots: int = 4, num_blocks: int = 16, num_host_slots: int = 0) -> KVCache:
    spec = KVCacheSpec(
        (PAGED, STATE, Hybrid(PAGED, STATE)), "float32", 4, num_slots=num_slots, num_host_slots=num_host_slots
    )
    pool = BlockPool(num_blocks)
    return KVCache(
        spec,
        num_blocks,
        64,
        prefix_cache=HashedPrefixCache(pool, 4),
        swap_store=HostSwapStore(Memory(num_blocks, 4, 16), 16),
        swap_threshold=0.0,
        pool=pool,
    )


def grow(kv: KVCache, seq_id: str, num_tokens: int) -> None:
    assert kv.reserve(seq_id, num_tokens).outcome is CacheOutcome.OK
    assert kv.commit(seq_id, num_tokens) is CacheOutcome.OK


def test_layers_are_counted_by_tokens_and_by_sequences() -> None:
    window = Window(1, 8, 8, 200)
    layers = (STATE, PAGED, Hybrid(window, STATE), Hybrid(Shared(1), STATE))
    spec = KVCacheSpec(layers, "bfloat16", 16, num_slots=3)
    assert spec.groups[0].layers == (1, 2)
    assert spec.bytes_per_token == 2 * 2 * 8 * 2
    assert spec.bytes_per_slot == 3 * (3 * 8 + 2 * 4 * 5) * 4
    assert list(spec.state_shapes.items())[1] == ("recurrent_state.0", (2, 4, 5))
    assert spec.group_and_position(3) == spec.group_and_position(1)
    assert KVCacheSpec((STATE, STATE), "float32", 16).bytes_per_block == 0


@pytest.mark.parametrize(
    "tensors", [(), (("a", (2,)), ("a", (2,))), (("k_cache", (2,)),), (("a.b", (2,)),), (("a", ()),), (("a", (2, 0)),)]
)
def test_tensors_need_names_and_elements(tensors: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        Recurrent(tensors)


def test_a_layer_does_not_share_keys_of_a_recurrent_one() -> None:
    with pytest.raises(InvalidArgumentError, match="Layer 1 shares the cache of layer 0"):
        KVCacheSpec((STATE, Shared(0)), "float32", 16)


def test_a_sequence_has_a_slot_from_its_first_reservation_to_its_end() -> None:
    kv = cache()
    for name in "abcd":
        kv.open(name)
    assert (kv.num_free_slots, kv.state_slot("a")) == (3, 0)
    for name in "abc":
        grow(kv, name, 2)
    slots = [kv.state_slot(name) for name in "abc"]
    assert sorted(slots) == [1, 2, 3]
    free = kv.num_free_blocks
    assert kv.reserve("d", 1).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert kv.num_free_blocks == free
    grow(kv, "a", 9)
    assert kv.state_slot("a") == slots[0]
    kv.release("b")
    grow(kv, "d", 1)
    assert kv.state_slot("d") == slots[1]
    for name in "acd":
        kv.release(name)
    assert kv.num_free_slots == 3


def test_no_slot_is_taken_if_blocks_are_short() -> None:
    kv = cache(num_blocks=2)
    kv.open("a")
    assert kv.reserve("a", 9).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert (kv.num_free_slots, kv.state_slot("a")) == (3, 0)


def test_a_fork_copies_the_state() -> None:
    kv = cache()
    kv.open("a")
    grow(kv, "a", 6)
    assert kv.fork("a", "b") is CacheOutcome.OK
    assert kv.state_copies == [(kv.state_slot("a"), kv.state_slot("b"))]
    assert kv.state_slot("a") != kv.state_slot("b")
    kv.state_copies.clear()
    assert kv.fork("a", "c") is CacheOutcome.OK
    assert kv.fork("a", "d") is CacheOutcome.NO_FREE_BLOCKS
    assert len(kv.state_copies) == 1
    assert kv.num_sequences == 3


def test_a_state_is_that_of_all_tokens() -> None:
    kv = cache()
    kv.open("a")
    grow(kv, "a", 6)
    blocks, slot = list(kv.block_table("a")), kv.state_slot("a")
    assert kv.may_truncate("a", 6)
    assert kv.may_truncate("a", 0)
    assert not kv.may_truncate("a", 5)
    refused = (
        kv.truncate("a", 5),
        kv.remove("a", 2),
        kv.remove("a", 0, 4),
        kv.keep("a", 4),
        kv.keep("a", 0, 4),
        kv.shift("a", 4, 3),
    )
    assert set(refused) == {CacheOutcome.RECURRENT_STATE}
    assert kv.truncate("a", 6) is kv.keep("a", 0) is kv.remove("a", 6) is CacheOutcome.OK
    assert (kv.num_tokens("a"), list(kv.block_table("a"))) == (6, blocks)
    assert kv.truncate_or_reset("a", 6) == 6
    assert kv.truncate_or_reset("a", 3) == 0
    assert (kv.num_tokens("a"), kv.state_slot("a"), kv.num_free_blocks) == (0, slot, 16)


def test_a_fork_of_the_first_tokens_gets_the_state_of_their_checkpoint() -> None:
    kv = cache(num_slots=4)
    kv.open("a")
    grow(kv, "a", 6)
    assert kv.checkpoint("a") is CacheOutcome.OK
    ((_, kept),) = kv.state_copies
    grow(kv, "a", 4)
    kv.state_copies.clear()
    assert kv.fork("a", "b", 6) is CacheOutcome.OK
    assert kv.state_copies == [(kept, kv.state_slot("b"))]
    assert (kv.num_tokens("a"), kv.num_tokens("b")) == (10, 6)


def test_a_sequence_returns_to_the_state_of_its_checkpoint() -> None:
    kv = cache(num_slots=3)
    kv.open("a")
    grow(kv, "a", 6)
    slot = kv.state_slot("a")
    assert kv.checkpoint("a") is CacheOutcome.OK
    ((source, kept),) = kv.state_copies
    assert source == slot != kept
    kv.state_copies.clear()
    grow(kv, "a", 4)
    assert kv.fork("a", "b", 8) is CacheOutcome.RECURRENT_STATE
    assert not kv.may_truncate("a", 8)
    assert kv.truncate_or_reset("a", 8) == 6, "the tokens behind the checkpoint are computed again"
    assert (kv.num_tokens("a"), kv.state_slot("a")) == (6, kept)
    grow(kv, "a", 2)
    assert kv.truncate_or_reset("a", 7) == 0, "the copy is the state now"
    grow(kv, "a", 3)
    assert kv.checkpoint("a") is CacheOutcome.OK
    assert kv.state_copies == [(kept, slot)], "a sequence has one checkpoint at most"
    assert kv.truncate_or_reset("a", 2) == 0
    assert kv.num_free_slots == 0
    kv.release("a")
    assert kv.num_free_slots == 2
    assert kv.checkpoint("a") is CacheOutcome.UNKNOWN_SEQUENCE


def test_a_state_is_swapped_with_its_blocks() -> None:
    kv = cache(num_host_slots=1)
    for name in "ab":
        kv.open(name)
        grow(kv, name, 6)
    slot = kv.state_slot("a")
    assert kv.swap_out("a") is CacheOutcome.OK
    assert kv.state_copies == [(slot, 4)]
    assert kv.swap_out("b") is CacheOutcome.NO_FREE_BLOCKS, "the slot in host memory is taken"
    assert kv.state("b") is CacheState.ACTIVE
    for name in "cd":
        kv.open(name)
        grow(kv, name, 1)
    assert kv.num_free_slots == 0
    assert kv.swap_in("a") is CacheOutcome.NO_FREE_BLOCKS
    kv.release("c")
    assert kv.swap_in("a") is CacheOutcome.OK
    assert kv.state_copies == [(slot, 4), (4, kv.state_slot("a"))]
    assert kv.swap_out("b") is CacheOutcome.OK
    assert kv.release("b") is CacheOutcome.OK
    assert kv.swap_out("d") is CacheOutcome.OK, "the slot of a swapped sequence is freed with it"


@pytest.mark.parametrize("num_host_slots", [0, 1])
def test_a_parked_sequence_makes_way_if_its_state_can_be_swapped(num_host_slots: int) -> None:
    kv = cache(num_host_slots=num_host_slots)
    kv.open("a")
    grow(kv, "a", 6)
    kv.park("a")
    assert kv.state("a") is (CacheState.SWAPPED if num_host_slots else CacheState.STANDBY)
    kv.open("b")
    grow(kv, "b", 40)
    assert kv.resume("a") is CacheOutcome.OK
    assert kv.num_tokens("a") == 6


def test_a_slot_is_taken_from_a_parked_sequence() -> None:
    kv = cache(num_slots=2, num_host_slots=1)
    kv.open("a")
    grow(kv, "a", 1)
    kv.pin("a")
    kv.park("a")
    kv.open("b")
    assert kv.reserve("b", 1).outcome is CacheOutcome.NO_FREE_BLOCKS, "a pinned one keeps its slot"
    kv.pin("a", False)
    grow(kv, "b", 1)
    assert (kv.state("a"), kv.state_slot("b")) == (CacheState.SWAPPED, 1)


def test_no_prefix_is_reused() -> None:
    kv = cache()
    tokens = list(range(12))
    kv.open("a", tokens)
    grow(kv, "a", 12)
    kv.release("a", tokens)
    assert kv.query(tokens) == 0
    assert kv.open("b", tokens).num_cached_tokens == 0
