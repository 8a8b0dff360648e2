"""Launches of projections by the number of tokens, in tiles of 16 outputs (`common/projection.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import WeightFormat
from aethermind_cuda.device_packing import format_family
from aethermind_cuda.kernels._common import div_up, has_whole_vectors
from aethermind_cuda.kernels._quantized_gemv import quantized_gemv
from aethermind_cuda.kernels._split_k import split_k_reduce
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch

__all__ = ["Projection", "SplitProjection"]

_WARP = 32
_TILE_OUTPUTS = 16
_CHUNK_INPUTS = 32
_BYTES_PER_CHUNK = 64
"""Shared memory per token and stage, for 16-bit inputs."""

_SKINNY_TOKENS = 8
_MAX_SKINNY_TOKENS = 32
_MAX_SKINNY_WARPS = 8
_TILED_TOKENS = 64
_TILED_WARPS = 4
_TILES_PER_WARP = 2
_STAGES = 3
_MAX_SPLIT_K_TOKENS = 2 * _TILED_TOKENS
_MAX_K_SPLITS = 16
_MIN_GROUPS_PER_SPLIT = 4
"""Fewest groups of a split of K: fewer do not amortise its start."""
_BLOCKS_PER_MULTIPROCESSOR = 2
_RING_BYTES = 8192
"""Ring per warp: `kRingBytes` of csrc/common/project_gemv.cuh."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The kernels of `csrc/<source>.cu`: x · weightᵀ of one weight, or of both of a SwiGLU.

    A warp processes `group_chunks` times 32 inputs per step. `max_skinny_tokens` is the limit of the widest skinny
    kernel, which reads a weight once; float32 has only the kernel for eight tokens. Skinny blocks have a warp for
    `steps_per_warp` steps, but no more than 8.
    """

    source: str
    num_weights: int
    group_chunks: int
    max_skinny_tokens: int = _SKINNY_TOKENS
    steps_per_warp: int = 1

    def launch(
        self,
        suffix: str,
        sizes: tuple[int, int, int],
        arguments: Sequence[Any],
        dtype: DType,
        *,
        is_invariant: bool,
        dense: Sequence[DeviceArray] = (),
    ) -> Launch:
        """The launch for `sizes` (tokens, outputs, inputs); `dense` are the weights where they are row-major.

        Skinny kernels sum in the same order for any number of tokens; with `is_invariant` no other kernel is used.
        """
        num_tokens, num_outputs, num_inputs = sizes
        tiles = div_up(num_outputs, _TILE_OUTPUTS)
        is_half = dtype is not DType.FLOAT32
        if is_half and num_tokens > _MAX_SKINNY_TOKENS and not is_invariant:
            kind, tokens, warps = "tiled", _TILED_TOKENS, _TILED_WARPS
            tiles = div_up(tiles * self.num_weights, _TILED_WARPS * _TILES_PER_WARP)
            shared_bytes = _STAGES * self.group_chunks * tokens * _BYTES_PER_CHUNK
        else:
            tokens = self.max_skinny_tokens if is_half and num_tokens > _SKINNY_TOKENS else _SKINNY_TOKENS
            is_gemv = is_half and tokens == _SKINNY_TOKENS and bool(dense) and all(map(has_whole_vectors, dense))
            kind = "gemv" if is_gemv else f"skinny{tokens}"
            num_steps = div_up(num_inputs, self.group_chunks * _CHUNK_INPUTS)
            warps = max(1, min(_MAX_SKINNY_WARPS, div_up(num_steps, self.steps_per_warp)))
            shared_bytes = warps * self.num_weights * tokens * (_TILE_OUTPUTS + 1) * DType.FLOAT32.itemsize
            shared_bytes += warps * _RING_BYTES * is_gemv
        grid = div_up(num_tokens, tokens), tiles, 1
        entry = f"{self.source}_{kind}_{suffix}"
        return Launch(self.source, entry, grid, (warps * _WARP, 1, 1), tuple(arguments), shared_bytes)


@dataclass(frozen=True, slots=True)
class SplitProjection:
    """The kernels of a projection with a quantised weight, `csrc/<source>.cu`.

    From nine tokens on a block dequantises 128 outputs once for up to 64 tokens. Where that makes too few blocks to
    occupy the GPU, blocks split K, and `split_k_reduce.cu` reduces.
    """

    source: str
    num_weights: int
    group_chunks: int

    def launches(
        self,
        format: WeightFormat,
        sizes: tuple[int, int, int],
        arguments: Sequence[Any],
        dtype: DType,
        device: DeviceFacts,
        workspace: int,
    ) -> Iterator[Launch]:
        """The launches for `sizes` (tokens, outputs, inputs); `arguments` begin with the output.

        `workspace` is the address of `split_k_workspace_bytes`. The summation order depends on the number of tokens.
        """
        num_tokens, num_outputs, _ = sizes
        if dtype is DType.FLOAT32 or num_tokens <= _SKINNY_TOKENS:
            yield self.batch_invariant_launch(format, sizes, arguments, dtype)
            return
        tokens = next((count for count in (16, 32) if num_tokens <= count), _TILED_TOKENS)
        num_splits = self._num_splits(sizes, device)
        shape = (num_splits, self.num_weights, num_tokens, num_outputs)
        partials = DeviceArray(workspace, DType.FLOAT32, shape) if num_splits > 1 else None
        grid = div_up(num_tokens, tokens), self._blocks_of_outputs(num_outputs), num_splits
        block, shared_bytes = (_TILED_WARPS * _WARP, 1, 1), _STAGES * self.group_chunks * tokens * _BYTES_PER_CHUNK
        is_plain = format_family(format) == f"int{format.bits}"
        entry = f"{self.source}_tiled{tokens}_int{format.bits}{'' if is_plain else '_affine'}_{dtype}"
        yield Launch(self.source, entry, grid, block, (*arguments, partials), shared_bytes)
        if partials is not None:
            out, bias = arguments[0], arguments[3] if self.num_weights == 1 else None
            yield split_k_reduce(out, partials, bias, dtype)

    def batch_invariant_launch(
        self, format: WeightFormat, sizes: tuple[int, int, int], arguments: Sequence[Any], dtype: DType
    ) -> Launch:
        """The batch-invariant launch: its summation order does not depend on the number of tokens."""
        arguments = (*arguments, None)
        gemv = quantized_gemv(self.source, format, sizes, arguments, arguments[1], self.num_weights)
        if gemv is not None:
            return gemv
        skinny = Projection(self.source, self.num_weights, self.group_chunks)
        return skinny.launch(f"int{format.bits}_{dtype}", sizes, arguments, dtype, is_invariant=True)

    def split_k_workspace_bytes(self, sizes: tuple[int, int, int], dtype: DType, device: DeviceFacts) -> int:
        """The workspace for at most this many tokens."""
        num_tokens, num_outputs, num_inputs = sizes
        if dtype is DType.FLOAT32 or num_tokens <= _SKINNY_TOKENS:
            return 0
        max_partial_rows = 0
        for tokens in range(_TILED_TOKENS, _MAX_SPLIT_K_TOKENS + 1, _TILED_TOKENS):
            tokens = min(tokens, num_tokens)
            num_splits = self._num_splits((tokens, num_outputs, num_inputs), device)
            max_partial_rows = max(max_partial_rows, num_splits * tokens if num_splits > 1 else 0)
        return max_partial_rows * self.num_weights * num_outputs * DType.FLOAT32.itemsize

    def _blocks_of_outputs(self, num_outputs: int) -> int:
        return div_up(div_up(num_outputs, _TILE_OUTPUTS) * self.num_weights, _TILED_WARPS * _TILES_PER_WARP)

    def _num_splits(self, sizes: tuple[int, int, int], device: DeviceFacts) -> int:
        """The number of splits of K, none of which is empty."""
        num_tokens, num_outputs, num_inputs = sizes
        if num_tokens > _MAX_SPLIT_K_TOKENS:
            return 1
        num_blocks = self._blocks_of_outputs(num_outputs) * div_up(num_tokens, _TILED_TOKENS)
        # One block more than are resident would double the time.
        wanted = _BLOCKS_PER_MULTIPROCESSOR * device.num_multiprocessors // max(1, num_blocks)
        num_groups = div_up(num_inputs, self.group_chunks * _CHUNK_INPUTS)
        max_splits = max(1, min(wanted, num_groups // _MIN_GROUPS_PER_SPLIT, _MAX_K_SPLITS))
        return div_up(num_groups, div_up(num_groups, max_splits)) if num_groups else 1
