"""Sampling: logits processors, token sampling and logprobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_FLOAT32 = frozenset({DType.FLOAT32})
_LOGITS_PER_BLOCK = 8192
"""Logits of a row per block, as in `adjust_logits.cu`."""
_SORTING_THREADS = 512
"""Capacity of `common/row_candidates.cuh`."""
_SEGMENT_UNIT = 128
_MAX_SEGMENTS = 2048
"""Limit of segments: their maxima are sorted in the memory of candidates."""
_SEGMENTS_PER_BLOCK = 32
"""Segments per block: four per warp."""
_GROUP = 512
"""Logits of a group, as in `common/row_masses.cuh`."""
_WINDOWS_INTS = 7
"""64-bit integers in the size of `Windows` in `common/row_windows.cuh`."""
_MAX_WINDOW_ELEMENTS = 16384
_MIN_WINDOW_ELEMENTS = 2048
_SUMMARY_BLOCK = (256, 1, 1)
_SUMMARY_BLOCKS, _GATHER_BLOCKS = 6, 5
"""Blocks that a multiprocessor holds of the kernels that read rows, by their registers and shared memory."""
_WAVES = 2
_ALIGNMENT = 256


def _logits_processor(entry: str) -> Callable[[Call], Iterator[Launch]]:
    """Kernel arguments: the inputs after the logits in order, then the vocabulary size."""

    def launches(call: Call) -> Iterator[Launch]:
        (out,) = call.outputs
        num_rows, size = out.shape
        sizes = (size, _width(call)) if entry == "mask_tokens" else (size,)
        grid = (num_rows, div_up(size, _LOGITS_PER_BLOCK), 1)
        threads = threads_for(size, max_threads=512)
        arguments = (out, *call.inputs, *sizes)
        yield Launch("adjust_logits", f"adjust_logits_{entry}", grid, (threads, 1, 1), arguments)

    return launches


def _width(call: Call) -> int:
    mask = call.inputs[1]
    assert mask is not None
    return mask.shape[1]


def _segments(size: int) -> tuple[int, int]:
    """The length and the number of a row's segments (`common/row_segments.cuh`)."""
    length = _SEGMENT_UNIT * max(1, div_up(size, _SEGMENT_UNIT * _MAX_SEGMENTS))
    return length, div_up(size, length)


def _sample_tokens(call: Call) -> Iterator[Launch]:
    (token_ids,) = call.outputs
    logits, *parameters, uniform = call.inputs
    statistics, sizes = _statistics(call, DType.INT64)
    arguments = (*statistics, logits, *parameters, *sizes)
    yield Launch("row_summaries", "row_summaries", _grid(call, _SUMMARY_BLOCKS), _SUMMARY_BLOCK, arguments)
    windows, ranks = _windows(call, statistics[-1])
    grid = _grid(call, _GATHER_BLOCKS)
    rows, block = (grid[0], 1, 1), (_SORTING_THREADS, 1, 1)
    size, segment, num_segments, _ = sizes
    capacity = ranks.shape[1]
    arguments = (token_ids, windows, logits, *parameters, uniform, *statistics, *sizes, capacity)
    yield Launch("find_windows", "find_windows", rows, block, arguments)
    arguments = (windows, ranks, logits, parameters[0], statistics[0], size, segment, num_segments, capacity)
    yield Launch("gather_windows", "gather_windows", grid, _SUMMARY_BLOCK, arguments)
    arguments = (token_ids, windows, ranks, logits, *parameters, uniform, size, capacity)
    yield Launch("sample_tokens", "sample_tokens", rows, block, arguments)


def _windows(call: Call, before: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """The windows of rows and their elements, in the workspace behind the statistics."""
    num_rows, size = call.inputs[0].shape  # type: ignore[union-attr]
    address = align_up(before.address + before.nbytes, _ALIGNMENT)
    windows = DeviceArray(address, DType.INT64, (num_rows, _WINDOWS_INTS))
    address = align_up(address + windows.nbytes, _ALIGNMENT)
    capacity = min(size, max(size // 4, _MIN_WINDOW_ELEMENTS), _MAX_WINDOW_ELEMENTS)
    return windows, DeviceArray(address, DType.INT64, (num_rows, capacity))


def _token_logprobs(call: Call) -> Iterator[Launch]:
    statistics, sizes = _statistics(call, DType.FLOAT32, DType.INT32)
    grid = _grid(call, _SUMMARY_BLOCKS)
    arguments = (*statistics, *call.inputs, *sizes)
    yield Launch("token_logprobs", "token_logprobs_summaries", grid, _SUMMARY_BLOCK, arguments)
    arguments = (*call.outputs, *call.inputs, *statistics, *sizes, int(call.attributes["k"]))
    yield Launch("token_logprobs", "token_logprobs", (grid[0], 1, 1), (_SORTING_THREADS, 1, 1), arguments)


def _statistics(call: Call, *sums: DType) -> tuple[tuple[DeviceArray, ...], tuple[int, ...]]:
    """The maxima of segments, those of groups, and sums over groups, in the workspace; their sizes."""
    num_rows, size = call.inputs[0].shape  # type: ignore[union-attr]
    segment, num_segments = _segments(size)
    num_groups = div_up(size, _GROUP)
    arrays = []
    address = call.workspace
    for dtype, width in (
        (DType.INT32, num_segments),
        (DType.INT32, num_groups),
        *((dtype, num_groups) for dtype in sums),
    ):
        arrays.append(DeviceArray(address, dtype, (num_rows, width)))
        address = align_up(address + arrays[-1].nbytes, _ALIGNMENT)
    return tuple(arrays), (size, segment, num_segments, num_groups)


def _grid(call: Call, blocks: int) -> tuple[int, int, int]:
    """The grid of a read of rows: at most as many blocks as fill the GPU twice, since each may compute a table first.

    All take as long, so a third wave of a few blocks would leave most multiprocessors idle.
    """
    num_rows, size = call.inputs[0].shape  # type: ignore[union-attr]
    parts = max(1, _WAVES * blocks * call.device.num_multiprocessors // max(1, num_rows))
    return num_rows, min(parts, div_up(_segments(size)[1], _SEGMENTS_PER_BLOCK)), 1


def _statistics_bytes(call: Call) -> int:
    """Of the statistics of either operator, which have 8 bytes of sums a group."""
    return _bytes_through(_statistics(call._replace(workspace=0), DType.INT64)[0][-1])


def _sample_bytes(call: Call) -> int:
    last = _statistics(call._replace(workspace=0), DType.INT64)[0][-1]
    return _bytes_through(_windows(call, last)[-1])


def _bytes_through(last: DeviceArray) -> int:
    return align_up(last.address + last.nbytes, _ALIGNMENT) + _ALIGNMENT


_ADJUSTMENTS = ("bias_tokens", "mask_tokens", "repetition_penalty", "suppress_tokens")

KERNELS = (
    *(cuda_kernel(name, _logits_processor(name), dtypes=_FLOAT32) for name in _ADJUSTMENTS),
    cuda_kernel("sample_tokens", _sample_tokens, dtypes=_FLOAT32, workspace_bytes=_sample_bytes),
    cuda_kernel("token_logprobs", _token_logprobs, dtypes=_FLOAT32, workspace_bytes=_statistics_bytes),
)
