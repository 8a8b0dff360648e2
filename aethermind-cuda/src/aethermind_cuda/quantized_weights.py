"""Packing of quantised weights into the layout of `csrc/common/quantized_weight.cuh`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Any

from aethermind.dispatch.kernel import Pack
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.ops.weight_format import MXFP4, QuantizedWeight, WeightFormat
from aethermind_cuda.device_packing import blocks_per_scale_vector, quantize_on_device

__all__ = ["GROUP_CHUNKS", "QuantizedLayout", "pack_rows_on_host", "quantized_pack"]

_TILE_OUTPUTS = 16
GROUP_CHUNKS = 4
_CHUNK_INPUTS = 32
_GROUP_INPUTS = GROUP_CHUNKS * _CHUNK_INPUTS
_THREADS = 4
"""Threads of an MMA fragment that hold the inputs of one output."""
_PAIRS = 4
"""Pairs of inputs of a chunk that a thread holds."""
_LOG2_CHUNKS_OF_ROW = 31
"""log2 of a bound on the number of chunks: the value for a scale block that is a whole row."""
_VALUES_PER_PART = 1 << 21

Array = Any


@dataclass(frozen=True, slots=True)
class QuantizedLayout:
    """The layout of a packed weight [N, K]: outputs are padded to whole tiles, inputs to whole groups."""

    format: WeightFormat
    shape: tuple[int, int]

    @property
    def num_tiles(self) -> int:
        """Tiles of 16 outputs."""
        return -(-self.shape[0] // _TILE_OUTPUTS)

    @property
    def num_groups(self) -> int:
        """Groups of 128 inputs."""
        return -(-self.shape[1] // _GROUP_INPUTS)

    @property
    def num_blocks(self) -> int:
        """Scale blocks of a row."""
        return self.format.num_blocks(self.shape[1])

    @property
    def log2_chunks(self) -> int:
        """log2 of the chunks of 32 inputs per scale block, as passed to kernels."""
        return (self.format.block // _CHUNK_INPUTS).bit_length() - 1 if self.format.block else _LOG2_CHUNKS_OF_ROW

    @property
    def affine_term(self) -> int:
        """The value of `aether::AffineTerm`: none, zero points or offsets."""
        return 1 if self.format.has_zero_point else 2 if self.format.has_offset else 0

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes; scales follow them."""
        return self.num_tiles * self.num_groups * _TILE_OUTPUTS * _GROUP_INPUTS * self.format.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale: a float16, or an exponent."""
        return 1 if self.format.scale_dtype == "uint8" else 2

    @property
    def num_scales(self) -> int:
        """Scales of all rows including padding; zero points or offsets follow them."""
        return self.num_tiles * self.num_scale_vectors * self.blocks_per_scale_vector * _TILE_OUTPUTS

    @property
    def blocks_per_scale_vector(self) -> int:
        """Scale blocks that are stored contiguously per output."""
        return blocks_per_scale_vector(self.format)

    @property
    def num_scale_vectors(self) -> int:
        """Scale vectors of a row (see csrc/common/quantized_weight.cuh); the last one may be padded."""
        return -(-self.num_blocks // self.blocks_per_scale_vector)

    @property
    def nbytes(self) -> int:
        """Total bytes."""
        per_scale = self.scale_bytes + (0, 1, 2)[self.affine_term]
        return self.code_bytes + self.num_scales * per_scale


def quantized_pack(format: WeightFormat) -> Pack:
    """The `Pack` of a weight format: packs QuantizedWeights, and quantises floating-point arrays.

    Floating-point arrays that are loaded to a GPU are quantised there. In mxfp4 they are quantised on the host; this is
    rare, because checkpoints are published in this format.
    """

    def pack_on_device(backend: Any, source: Array, destination: Any) -> None:
        quantize_on_device(backend, format, source, destination)

    return Pack(
        f"tiles16_{format.name}",
        nbytes=lambda shape, _: QuantizedLayout(format, _matrix(shape)).nbytes,
        pack=lambda source, destination: _pack_on_host(format, source, destination),
        weight_format=format.name,
        pack_on_device=None if format == MXFP4 else pack_on_device,
    )


def pack_rows_on_host(
    format: WeightFormat,
    source: Array | QuantizedWeight,
    pack_rows: Callable[[int, QuantizedWeight], None],
    *,
    row_multiple: int = 1,
) -> None:
    """Call `pack_rows(first row, rows)` for the rows of a matrix [N, K] in a format, in parts and on all cores.

    Floating-point rows are quantised, which raises InvalidArgumentError as the format does. The first row of each part
    is a multiple of `row_multiple`.
    """
    num_rows, columns = source.shape
    rows_per_part = max(1, _VALUES_PER_PART // max(1, columns * row_multiple)) * row_multiple

    def pack(begin: int) -> None:
        end = min(begin + rows_per_part, num_rows)
        if isinstance(source, QuantizedWeight):
            pack_rows(begin, source.rows(begin, end))
            return
        pack_rows(begin, format.quantize(source[begin:end]))
        drop_mapped_pages(source[begin:end])

    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(pack, range(0, num_rows, rows_per_part)))


def _pack_on_host(format: WeightFormat, source: Array | QuantizedWeight, destination: int) -> None:
    """Pack into host memory at an address; raises InvalidArgumentError as the format does."""
    layout = QuantizedLayout(format, _matrix(source.shape))
    codes, scales, terms = _parts(layout, destination)

    def pack_rows(begin: int, part: QuantizedWeight) -> None:
        first, last = begin // _TILE_OUTPUTS, -(-(begin + part.shape[0]) // _TILE_OUTPUTS)
        codes[first:last] = _words(layout, part.codes, last - first)
        scales[first:last] = _by_tile(layout, part.scales, last - first)
        part_terms = part.zeros if part.zeros is not None else part.offsets
        if terms is not None and part_terms is not None:
            terms[first:last] = _by_tile(layout, part_terms, last - first)

    pack_rows_on_host(format, source, pack_rows, row_multiple=_TILE_OUTPUTS)


def _parts(layout: QuantizedLayout, address: int) -> tuple[Array, Array, Array | None]:
    """Views of host memory by tile: code words, scales, and zero points or offsets."""
    import numpy as np

    buffer = (ctypes.c_uint8 * layout.nbytes).from_address(address)
    memory = np.ctypeslib.as_array(buffer)
    codes, rest = memory[: layout.code_bytes], memory[layout.code_bytes :]
    scale_bytes = layout.num_scales * layout.scale_bytes
    by_tile = layout.num_tiles, layout.num_scale_vectors * layout.blocks_per_scale_vector * _TILE_OUTPUTS
    term_dtype = (None, np.uint8, np.float16)[layout.affine_term]
    return (
        codes.view(np.uint32).reshape(layout.num_tiles, -1),
        rest[:scale_bytes].view(layout.format.scale_dtype).reshape(by_tile),
        None if term_dtype is None else rest[scale_bytes:].view(term_dtype).reshape(by_tile),
    )


def _words(layout: QuantizedLayout, codes: Array, num_tiles: int) -> Array:
    """Pack codes [rows, K] into words [tiles, …], in the bit layout of quantized_weight.cuh."""
    import numpy as np

    bits = layout.format.bits
    padded = np.zeros((num_tiles * _TILE_OUTPUTS, layout.num_groups * _GROUP_INPUTS), np.uint32)
    padded[: len(codes), : codes.shape[1]] = _unsigned(codes, bits)
    # [tile, output, group, chunk, thread, pair, half] to [tile, group, output, thread, slot of the pair, half]
    axes = padded.reshape(num_tiles, _TILE_OUTPUTS, layout.num_groups, GROUP_CHUNKS, _THREADS, _PAIRS, 2)
    pairs = axes.transpose(0, 2, 1, 4, 3, 5, 6).reshape(-1, bits, GROUP_CHUNKS * _PAIRS // bits, 2)
    bit_offsets = bits * np.arange(pairs.shape[2], dtype=np.uint32)[:, None] + np.array([0, 16], np.uint32)
    words: Array = np.bitwise_or.reduce(pairs << bit_offsets, axis=(2, 3))
    return words.reshape(num_tiles, -1)


def _unsigned(codes: Array, bits: int) -> Array:
    """Unsigned codes: the zero point is added to symmetric codes; -1 and 1 become 0 and 1."""
    import numpy as np

    if codes.dtype == np.uint8:
        return codes
    if bits == 1:
        return codes > 0
    return (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)


def _by_tile(layout: QuantizedLayout, rows: Array, num_tiles: int) -> Array:
    """Reorder [rows, blocks] to [tiles, scale vectors · 8 outputs · blocks of a vector · 2], padded with zeros."""
    import numpy as np

    per_vector, num_scale_vectors = layout.blocks_per_scale_vector, layout.num_scale_vectors
    padded = np.zeros((num_tiles * _TILE_OUTPUTS, num_scale_vectors * per_vector), rows.dtype)
    padded[: len(rows), : rows.shape[1]] = rows
    axes = padded.reshape(num_tiles, 2, _TILE_OUTPUTS // 2, num_scale_vectors, per_vector)
    return axes.transpose(0, 3, 2, 4, 1).reshape(num_tiles, -1)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns
