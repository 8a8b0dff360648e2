"""Which attention kernels are launched for which shapes, and that the workspace holds what they leave in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels import load_kernels
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch

NUM_MULTIPROCESSORS = 132
FACTS = DeviceFacts((10, 0), NUM_MULTIPROCESSORS, 227 << 10)
BLOCK_SIZE = 16
KERNEL: Any = next(
    kernel.function
    for kernel in load_kernels()
    if (kernel.operator, kernel.name) == ("paged_attention", "cuda/tensor_cores")
)


def attention_call(
    num_tokens: int,
    num_sequences: int,
    longest: int,
    heads: tuple[int, int] = (28, 4),
    head_dim: int = 128,
) -> Call:
    """The heads are those of Qwen2-7B; `longest` is what a row of the block table has slots for."""
    num_heads, num_kv_heads = heads

    def array(dtype: DType, *shape: int) -> DeviceArray:
        return DeviceArray(1 << 40, dtype, shape)

    cache = array(DType.BFLOAT16, 1000, num_kv_heads, BLOCK_SIZE, head_dim)
    q = array(DType.BFLOAT16, num_tokens, num_heads, head_dim)
    tables = (
        array(DType.INT32, num_sequences + 1),
        array(DType.INT32, num_sequences),
        array(DType.INT32, num_sequences, longest // BLOCK_SIZE),
    )
    return Call((q, cache, cache, *tables), (q,), {"scale": 1.0, "window": 0}, FACTS, 1 << 41)


def launches(call: Call) -> dict[str, Launch]:
    """By the last word of their source."""
    return {work.source.rsplit("_", 1)[1]: work for work in KERNEL(call)}


@pytest.mark.parametrize(
    ("num_tokens", "num_sequences", "longest", "names"),
    [
        pytest.param(64, 64, 4096, ["decode"], id="decode of sequences that occupy the GPU"),
        pytest.param(1, 1, 4096, ["decode", "combine"], id="decode of one sequence"),
        pytest.param(2, 1, 4096, ["decode", "combine"], id="two queries whose heads fit one tile"),
        pytest.param(5, 1, 4096, ["prefill", "combine"], id="drafts of one sequence"),
        pytest.param(2048, 1, 2048, ["prefill"], id="prefill whose tiles occupy the GPU"),
        pytest.param(100, 1, 256, ["prefill"], id="too few keys to split"),
        pytest.param(40, 8, 4096, ["decode", "prefill", "combine"], id="drafts, or decodes and a chunk"),
        pytest.param(0, 4, 4096, [], id="no tokens"),
    ],
)
def test_the_launches_required_by_shapes(num_tokens: int, num_sequences: int, longest: int, names: list[str]) -> None:
    launched = launches(attention_call(num_tokens, num_sequences, longest))
    assert [name for name, launch in launched.items() if all(launch.grid)] == names


def test_drafts_with_a_long_context_occupy_every_multiprocessor() -> None:
    prefill = launches(attention_call(5, 1, 16384))["prefill"]
    arguments = prefill.arguments[0]
    tiles, num_kv_heads, _ = prefill.grid
    assert num_kv_heads == 4
    assert arguments.decode_rows == 0  # the only sequence is its own
    assert arguments.max_prefill_splits * num_kv_heads >= NUM_MULTIPROCESSORS
    assert tiles >= arguments.max_prefill_splits


@pytest.mark.parametrize(
    ("num_tokens", "num_sequences", "heads", "rows"),
    [
        pytest.param(64, 64, (28, 4), 8, id="decode"),
        pytest.param(64, 64, (16, 1), 16, id="decode of a large group"),
        pytest.param(96, 64, (28, 4), 16, id="sequences that may have two queries"),
    ],
)
def test_tiles_are_no_larger_than_groups(
    num_tokens: int, num_sequences: int, heads: tuple[int, int], rows: int
) -> None:
    decode = launches(attention_call(num_tokens, num_sequences, 4096, heads))["decode"]
    assert decode.arguments[0].decode_tile_rows == rows
    assert decode.kernel.endswith(f"_{rows}")


def test_one_sequence_is_split_among_all_multiprocessors() -> None:
    decode = launches(attention_call(1, 1, 16384))["decode"]
    assert decode.grid[0] * decode.grid[1] * decode.grid[2] >= 2 * NUM_MULTIPROCESSORS - decode.grid[1]


SIZES = st.tuples(st.integers(0, 5000), st.integers(0, 300), st.integers(0, 200).map(lambda blocks: blocks * 16))


@given(
    sizes=SIZES,
    most=SIZES,
    heads=st.sampled_from([(28, 4), (7, 1), (40, 2), (512, 512), (8, 8)]),
    head_dim=st.sampled_from([64, 80, 128]),
)
def test_the_workspace_of_the_largest_sizes_holds_every_partial(
    sizes: tuple[int, int, int], most: tuple[int, int, int], heads: tuple[int, int], head_dim: int
) -> None:
    num_tokens, num_sequences, longest = (max(pair) for pair in zip(sizes, most, strict=True))
    nbytes = KERNEL.workspace_bytes(attention_call(num_tokens, num_sequences, longest, heads, head_dim))
    call = attention_call(*sizes, heads, head_dim)
    for launch in KERNEL(call):
        (arguments,) = launch.arguments
        row_bytes = ((64 if head_dim == 64 else 96 if head_dim == 80 else 128) + 2) * 4
        decode = launch.grid[0] * launch.grid[1] * arguments.max_decode_splits * 16 * row_bytes
        prefill = arguments.max_prefill_splits * heads[1] * 128 * row_bytes
        if launch.source.endswith("decode") and arguments.max_decode_splits > 1:
            assert arguments.decode_partials + decode <= arguments.prefill_partials
        assert arguments.prefill_partials + prefill <= call.workspace + nbytes
