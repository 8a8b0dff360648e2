"""The emulator judges kernels rightly: what is right computes what NumPy computes, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.cuda.emulator import CompileError, EmulationError, Kernels, Offset, TiledMatrix, compile_kernels

SAMPLES = Path(__file__).parent / "emulator" / "samples"
WIDTH = 300


@pytest.fixture(scope="module")
def reductions() -> Kernels:
    return compile_kernels(SAMPLES / "reductions.cu")


@pytest.fixture(scope="module")
def matmuls() -> Kernels:
    return compile_kernels(SAMPLES / "matmul.cu")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("block", [32, 96, 256])
def test_a_reduction_of_a_block(reductions: Kernels, rng: np.random.Generator, block: int) -> None:
    x = rng.standard_normal((7, WIDTH), np.float32)
    out = np.zeros(7, np.float32)
    reductions.row_sums(out, x, WIDTH, grid=7, block=block)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("no_barrier", r"race for byte \d+ of shared memory: it (reads|writes) at reductions.cu:\d+"),
        ("no_second_barrier", "race for byte"),
        ("tail", r"reads 4 bytes at reductions.cu:\d+ that end 4 bytes beyond the end of `x` of 8400 bytes"),
        ("divergent_barrier", r"waits at the barrier of .*reductions.cu:\d+ while thread"),
        ("early_exit", r"__shfl_xor_sync.*does not come: it has ended"),
        ("mask", r"__shfl_xor_sync.*does not come: it waits at __syncthreads"),
        ("index_beyond", r"index \d+ is outside of 'float \[8\]'"),
    ],
)
def test_planted_bugs_are_named(reductions: Kernels, rng: np.random.Generator, mistake: str, words: str) -> None:
    width = 250 if mistake == "early_exit" else WIDTH
    x = rng.standard_normal((7, width), np.float32)
    with pytest.raises(EmulationError, match=rf"^{mistake}: block \(\d, 0, 0\), thread \(\d+, 0, 0\).*{words}"):
        reductions[mistake](np.zeros(7, np.float32), x, width, grid=7, block=256)


def test_vector_loads_have_to_be_aligned(reductions: Kernels) -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    reductions.vector_copy(out, Offset(x, 32), grid=1, block=32)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(EmulationError, match=r"as .const struct float4. at .*, which needs a multiple of 16"):
        reductions.vector_copy(out, Offset(x, 8), grid=1, block=32)


def test_an_access_before_an_array_is_out_of_bounds(reductions: Kernels) -> None:
    with pytest.raises(EmulationError, match=r"writes 4 bytes at .* that begin 4 bytes before `out`"):
        reductions.write_before(np.zeros(4, np.float32), grid=1, block=1)


def test_a_block_is_no_larger_than_its_kernel_allows(reductions: Kernels) -> None:
    with pytest.raises(EmulationError, match="512 threads exceed its __launch_bounds__ of 256"):
        reductions.row_sums(np.zeros(1, np.float32), np.zeros((1, WIDTH), np.float32), WIDTH, grid=1, block=512)


def test_atomics_are_not_a_race(reductions: Kernels, rng: np.random.Generator) -> None:
    values = rng.integers(0, 16, 1000).astype(np.int32)
    counts = np.zeros(16, np.int32)
    reductions.count_by_atomics(counts, values, 1000, grid=8, block=128)
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=16))


def test_only_syncwarp_orders_the_memory_of_a_warp(reductions: Kernels) -> None:
    out = np.zeros(32, np.int32)
    reductions.exchange(out, grid=1, block=32)
    np.testing.assert_array_equal(out, np.arange(32) ^ 1)
    with pytest.raises(EmulationError, match="race for byte"):
        reductions.exchange_unordered(out, grid=1, block=32)


def test_votes_and_shuffles(reductions: Kernels) -> None:
    lanes = np.arange(32)
    x = (lanes % 3).astype(np.int32)
    out = np.zeros((7, 32), np.uint32)
    reductions.votes(out, x, grid=1, block=32)
    expected = [
        np.full(32, sum(1 << int(lane) for lane in lanes if x[lane])),
        np.full(32, 2),
        np.where(lanes % 8 < 3, lanes, lanes - 3),
        np.where(lanes % 8 >= 5, lanes, lanes + 3),
        lanes // 16 * 16 + 9,
        np.full(32, np.count_nonzero(x)),
        lanes ^ 5,
    ]
    np.testing.assert_array_equal(out, expected)


def test_halves_are_rounded_to_nearest_even(reductions: Kernels, rng: np.random.Generator) -> None:
    bits = rng.integers(0, 2**32, 20000, np.uint32)
    ties = (np.arange(2**12, dtype=np.uint32) << 12 | 0x38000000, np.arange(2**12, dtype=np.uint32) << 15 | 0x3F800000)
    x = np.concatenate([bits, *ties]).view(np.float32)
    x = x[np.isfinite(x)]
    halves, bfloats = np.zeros(len(x), np.float16), np.zeros(len(x), ml_dtypes.bfloat16)
    back = np.zeros((2, len(x)), np.float32)
    reductions.round_halves(halves, bfloats, back, x, len(x), grid=-(-len(x) // 256), block=256)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves.view(np.uint16), x.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(bfloats.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(back, [halves.astype(np.float32), bfloats.astype(np.float32)])


@pytest.mark.parametrize("rows", [16, 21, 40])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_product_on_tensor_cores(matmuls: Kernels, rng: np.random.Generator, dtype: type, rows: int) -> None:
    a, b = rng.standard_normal((rows, 96)).astype(dtype), rng.standard_normal((64, 96)).astype(dtype)
    out = np.zeros((rows, 64), np.float32)
    kernel = matmuls.matmul_float16 if dtype is np.float16 else matmuls.matmul_bfloat16
    kernel(out, a, b, rows, 64, 96, grid=(-(-rows // 16), 2), block=128, shared=STAGES)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-4)


STAGES = 2 * (16 + 32) * 40 * 2


@pytest.mark.parametrize("kernel", ["matmul_no_wait", "matmul_one_barrier"])
def test_copies_without_a_wait_are_detected(matmuls: Kernels, rng: np.random.Generator, kernel: str) -> None:
    a, b = rng.standard_normal((16, 96)).astype(np.float16), rng.standard_normal((32, 96)).astype(np.float16)
    with pytest.raises(EmulationError):
        matmuls[kernel](np.zeros((16, 32), np.float32), a, b, 16, 32, 96, grid=(1, 1), block=128, shared=STAGES)


def test_shared_memory_beyond_the_launch_is_out_of_bounds(matmuls: Kernels) -> None:
    a, b = np.zeros((16, 96), np.float16), np.zeros((32, 96), np.float16)
    with pytest.raises(EmulationError, match=r"not in shared memory|no device memory|beyond the end of shared memory"):
        matmuls.matmul_float16(np.zeros((16, 32), np.float32), a, b, 16, 32, 96, grid=1, block=128, shared=STAGES // 2)


def test_a_product_of_int8_tiles(matmuls: Kernels, rng: np.random.Generator) -> None:
    a, b = rng.integers(-128, 128, (16, 32), np.int8), rng.integers(-128, 128, (8, 32), np.int8)
    out = np.zeros((16, 8), np.int32)
    matmuls.product_int8(out, a, b, grid=1, block=32)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32).T)


def test_matrices_are_loaded_transposed(matmuls: Kernels, rng: np.random.Generator) -> None:
    tiles = rng.integers(0, 2**16, (4, 8, 8), np.uint16)
    out = np.zeros((32, 4, 2), np.uint16)
    matmuls.transpose_tiles(out, tiles, grid=1, block=32)
    for lane in range(32):
        for matrix in range(4):
            expected = tiles[matrix].T[lane // 4, lane % 4 * 2 :][:2]
            np.testing.assert_array_equal(out[lane, matrix], expected)


def sums_of_tiles(kernel: str, rng: np.random.Generator) -> None:
    """Of 30 rows and 600 columns, which end within tiles of 32 rows and 64 columns."""
    matrix = rng.standard_normal((30, 600)).astype(ml_dtypes.bfloat16)
    out = np.zeros(32, np.float32)
    shared = 2 * 32 * 64 * 2 + 2 * 2 * 8 + 32 * 4
    compile_kernels(SAMPLES / "tiles.cu")[kernel](out, TiledMatrix(matrix, 32), 5, grid=2, block=64, shared=shared)
    np.testing.assert_allclose(out, [*matrix.astype(np.float64).sum(1), 0, 0], rtol=1e-5, atol=1e-4)


def test_tiles_arrive_in_stages_for_a_cluster(rng: np.random.Generator) -> None:
    sums_of_tiles("tile_sums", rng)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("no_wait", "while an asynchronous copy to it is under way|race for byte"),
        ("no_release", "under way|race for byte|more threads arrive at a barrier in shared memory"),
        ("too_few_bytes", "waits at a barrier in shared memory"),
        ("no_arrival", "waits at a barrier in shared memory, to which"),
        ("no_cluster_barrier", "of its cluster, with no barrier of the cluster before|which has ended"),
        ("no_last_barrier", "of its cluster, which has ended"),
    ],
)
def test_planted_bugs_of_tiles_are_named(mistake: str, words: str, rng: np.random.Generator) -> None:
    with pytest.raises(EmulationError, match=words):
        sums_of_tiles(mistake, rng)


def test_only_kernels_with_clusters_wait_for_one() -> None:
    kernels = compile_kernels(SAMPLES / "tiles.cu")
    with pytest.raises(EmulationError, match="no __cluster_dims__"):
        kernels.no_cluster(grid=1, block=32)
    with pytest.raises(EmulationError, match="3 blocks are no multiple of a cluster of 2"):
        kernels.tile_sums(np.zeros(32, np.float32), bytes(128), 1, grid=3, block=64)


def test_arguments_are_judged_by_the_kernel_s_own_parameters(reductions: Kernels) -> None:
    out, x = np.zeros(1, np.float32), np.zeros((1, WIDTH), np.float32)
    assert [(one.name, one.kind, one.size) for one in reductions.row_sums.parameters] == [
        ("out", "p", 8),
        ("x", "c", 8),
        ("width", "i", 4),
    ]
    with pytest.raises(TypeError, match="takes 3 arguments, not 2"):
        reductions.row_sums(out, x, grid=1, block=32)
    with pytest.raises(TypeError, match="x is a pointer and wants a contiguous array"):
        reductions.row_sums(out, 0, WIDTH, grid=1, block=32)


def test_a_source_without_kernels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.cu").write_text("int nothing;\n")
    with pytest.raises(CompileError, match=r"none.cu has no kernel"):
        compile_kernels(tmp_path / "none.cu")
