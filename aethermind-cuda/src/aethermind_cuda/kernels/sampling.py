"""From logits to tokens: changes of logits, the choice of a token, and what the model thought of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import cuda_kernel, div_up, threads_for
from aethermind_cuda.launch import Call, Launch

__all__ = ["KERNELS"]

_FLOAT32 = frozenset({DType.FLOAT32})
_STRETCH = 8192
"""Logits of a row that a block changes, as in `adjust_logits.cu`."""


def _adjusting(entry: str) -> Callable[[Call], Iterator[Launch]]:
    """Inputs after the logits go to the kernel in their order, then the vocabulary's size."""

    def launches(call: Call) -> Iterator[Launch]:
        (out,) = call.outputs
        num_rows, size = out.shape
        sizes = (size, _width(call)) if entry == "mask_tokens" else (size,)
        grid = (num_rows, div_up(size, _STRETCH), 1)
        threads = threads_for(size, most=512)
        arguments = (out, *call.inputs, *sizes)
        yield Launch("adjust_logits", f"adjust_logits_{entry}", grid, (threads, 1, 1), arguments)

    return launches


def _width(call: Call) -> int:
    mask = call.inputs[1]
    assert mask is not None
    return mask.shape[1]


def _sample_tokens(call: Call) -> Iterator[Launch]:
    (token_ids,) = call.outputs
    logits = call.inputs[0]
    assert logits is not None
    num_rows, size = logits.shape
    arguments = (token_ids, *call.inputs, size)
    yield Launch("sample_tokens", "sample_tokens", (num_rows, 1, 1), (threads_for(size, most=512), 1, 1), arguments)


def _token_logprobs(call: Call) -> Iterator[Launch]:
    logits, token_ids = call.inputs
    assert logits is not None
    num_rows, size = logits.shape
    arguments = (*call.outputs, logits, token_ids, size, int(call.attributes["k"]))
    yield Launch("token_logprobs", "token_logprobs", (num_rows, 1, 1), (threads_for(size), 1, 1), arguments)


_ADJUSTMENTS = ("bias_tokens", "mask_tokens", "repetition_penalty", "suppress_tokens")

KERNELS = (
    *(cuda_kernel(name, _adjusting(name), dtypes=_FLOAT32) for name in _ADJUSTMENTS),
    cuda_kernel("sample_tokens", _sample_tokens, dtypes=_FLOAT32),
    cuda_kernel("token_logprobs", _token_logprobs, dtypes=_FLOAT32),
)
