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
_BLOCKS_PER_MULTIPROCESSOR = 4
_WAVES = 6
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
    assert logits is not None
    num_rows, size = logits.shape
    segment, num_segments = _segments(size)
    maxima, group_maxima, masses = statistics = _row_statistics(call)
    num_groups = masses.shape[1]
    sizes = (size, segment, num_segments, num_groups)
    # As many blocks as fill the GPU several times: each computes a table first.
    parts = div_up(_WAVES * _BLOCKS_PER_MULTIPROCESSOR * call.device.num_multiprocessors, max(1, num_rows))
    grid = (num_rows, min(parts, div_up(num_segments, _SEGMENTS_PER_BLOCK)), 1)
    yield Launch("row_summaries", "row_summaries", grid, (256, 1, 1), (*statistics, logits, *parameters, *sizes))
    arguments = (token_ids, logits, *parameters, uniform, maxima, group_maxima, masses, *sizes)
    yield Launch("sample_tokens", "sample_tokens", (num_rows, 1, 1), (_SORTING_THREADS, 1, 1), arguments)


def _row_statistics(call: Call) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """The maxima of segments, and the maxima and masses of groups, in the workspace."""
    num_rows, size = call.inputs[0].shape  # type: ignore[union-attr]
    num_groups = div_up(size, _GROUP)
    maxima = DeviceArray(call.workspace, DType.INT32, (num_rows, _segments(size)[1]))
    group_maxima = DeviceArray(_end(maxima), DType.INT32, (num_rows, num_groups))
    return maxima, group_maxima, DeviceArray(_end(group_maxima), DType.INT64, (num_rows, num_groups))


def _end(array: DeviceArray) -> int:
    return align_up(array.address + array.nbytes, _ALIGNMENT)


def _sampling_bytes(call: Call) -> int:
    return _end(_row_statistics(call._replace(workspace=0))[-1])


def _token_logprobs(call: Call) -> Iterator[Launch]:
    logits, token_ids = call.inputs
    assert logits is not None
    num_rows, size = logits.shape
    arguments = (*call.outputs, logits, token_ids, size, int(call.attributes["k"]))
    yield Launch("token_logprobs", "token_logprobs", (num_rows, 1, 1), (_SORTING_THREADS, 1, 1), arguments)


_ADJUSTMENTS = ("bias_tokens", "mask_tokens", "repetition_penalty", "suppress_tokens")

KERNELS = (
    *(cuda_kernel(name, _logits_processor(name), dtypes=_FLOAT32) for name in _ADJUSTMENTS),
    cuda_kernel("sample_tokens", _sample_tokens, dtypes=_FLOAT32, workspace_bytes=_sampling_bytes),
    cuda_kernel("token_logprobs", _token_logprobs, dtypes=_FLOAT32),
)
