"""Reductions over the last dim by torch: sum, mean, max, min, argmax and softmax."""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import in_float32, into_output, plain_kernel, put

__all__ = ["KERNELS"]

KERNELS = [
    plain_kernel("sum", in_float32(lambda x: x.sum(-1))),
    plain_kernel("mean", in_float32(lambda x: x.mean(-1))),
    plain_kernel("max", into_output(lambda x, out: torch.amax(x, -1, out=out))),
    plain_kernel("min", into_output(lambda x, out: torch.amin(x, -1, out=out))),
    plain_kernel("argmax", lambda inputs, outputs, _: put(outputs[0], inputs[0].argmax(-1))),
    plain_kernel("softmax", in_float32(lambda x: x.softmax(-1))),
]
