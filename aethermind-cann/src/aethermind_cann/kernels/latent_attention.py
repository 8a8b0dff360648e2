"""Multi-head latent attention in its absorbed form, over a cache of latent vectors, and its per-head products.

torch_npu's fused attention is not used: it reads latent vectors and rotated keys from two caches, and supports heads of
up to 512 elements. A row of this cache holds both.
"""

from __future__ import annotations

from typing import Any

import torch

from aethermind_cann.kernels._kernel import Attributes, Tensors, plain_kernel, put
from aethermind_cann.kernels.attention import ScoreRules
from aethermind_cann.kernels.paged_attention import PagedCall, attend_blocks, gather_blocks

__all__ = ["KERNELS"]


def _mla_attention(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    q, k_cache, *tables = inputs

    def gather(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = gather_blocks(k_cache, blocks)
        return keys, keys[..., : attributes["value_dim"]]

    call = PagedCall(gather, k_cache.shape[2], 0, ScoreRules(attributes["scale"]))
    attend_blocks(q, tables, call, outputs[0])


def _linear_per_head(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """Dequantised weights are float32, and then everything is computed in float32."""
    x, weight = inputs
    matrices = weight.view(attributes["num_heads"], -1, weight.shape[1]).transpose(1, 2)
    put(outputs[0], torch.bmm(x.transpose(0, 1).to(weight.dtype), matrices).transpose(0, 1))


def _by_row(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> None:
    """One product per token and head, for batch invariance."""
    x, weight = inputs
    for token in range(len(x)):
        current = slice(token, token + 1)
        _linear_per_head((x[current], weight), (outputs[0][current],), attributes)


_ANY_WEIGHT: dict[str, Any] = {"weight_formats": None}

KERNELS = [
    plain_kernel("mla_attention", _mla_attention),
    plain_kernel("linear_per_head", _linear_per_head, is_batch_invariant=False, **_ANY_WEIGHT),
    plain_kernel("linear_per_head", _by_row, name="torch by row", priority=-1, **_ANY_WEIGHT),
]
