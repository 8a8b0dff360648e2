"""The short causal convolution of recurrent layers, as a sum over its few taps.

torch's convolution is not used, because torch_npu computes float32 convolutions in HF32 by default. Prefill and decode
add the taps in the same order.
"""

from __future__ import annotations

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel
from aethermind_cann.kernels._state_runs import state_runs

__all__ = ["KERNELS"]


def _causal_conv1d(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    x, w, bias, _, *tables = inputs
    out, states = outputs
    taps = w.float()
    for run in state_runs(tables):
        window = torch.cat([run.states(states), run.take(x)], 1)  # [B, J + L, C]
        total = torch.zeros_like(window[:, : run.num_tokens]) if bias is None else bias.float()
        for tap, weight in enumerate(taps.unbind()):
            total = torch.addcmul(total, window[:, tap : tap + run.num_tokens], weight)
        run.put(out, torch.nn.functional.silu(total) if attributes["silu"] else total)
        run.put_states(states, window[:, run.num_tokens :])


KERNELS = [plain_kernel("causal_conv1d", _causal_conv1d)]
