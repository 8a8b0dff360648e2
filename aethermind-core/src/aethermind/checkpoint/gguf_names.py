"""GGUF's tensor names as Hugging Face's: the names that all decoders of Llama's shape share on both sides.

Families whose projections are stored for interleaved rotation are put back in order as they are read: such a file pairs
rows 2i and 2i + 1 of a head, where Hugging Face's checkpoints (and our graphs) pair i and i + head_dim / 2.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aethermind.checkpoint.gguf_parts import GgufParts
from aethermind.checkpoint.source import TensorInfo
from aethermind.errors import CheckpointError
from aethermind.ops.weight_format import QuantizedWeight

__all__ = ["GgufTensors", "ROPE_FACTORS", "hf_name"]

ROPE_FACTORS = "rope_freqs.weight"
"""What each rotary frequency is divided by, float32 [head_dim / 2]: configuration that is stored as a tensor."""

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def hf_name(name: str, more: Mapping[str, str] | None = None) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`; a name that is not known stays as it is.

    `more` are modules of a layer that Llama does not have, by GGUF's names.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    layer, kind = match["layer"], match["kind"]
    modules = _OUTSIDE if layer is None else {**_IN_LAYER, **(more or {})}
    module = modules.get(match["module"])
    if module is None:
        return name
    return f"{module}.{kind}" if layer is None else f"model.layers.{layer}.{module}.{kind}"


class GgufTensors:
    """A GGUF file's tensors by Hugging Face's names; implements `StoredTensors`. Immutable."""

    def __init__(
        self,
        file: GgufParts,
        modules: Mapping[str, str] | None = None,
        interleaved: Collection[str] = (),
        head_dim: int = 0,
    ) -> None:
        """See `model.gguf_family` for `modules` and `interleaved`, whose heads have `head_dim` rows each.

        CheckpointError when a tensor of the file is of a type that cannot be read.
        """
        self._file = file
        self._originals = {hf_name(name, modules): name for name in file.names if name != ROPE_FACTORS}
        self._interleaved, self._head_dim = interleaved, head_dim
        for name in file.names:
            file.info(name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return self._file.paths

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the file's order."""
        return tuple(self._originals)

    @property
    def neutral_names(self) -> tuple[str, ...]:
        """None: converters to GGUF add no tensors."""
        return ()

    @property
    def total_bytes(self) -> int:
        """Size of all values together."""
        return self._file.total_bytes

    def info(self, name: str) -> TensorInfo:
        """Describe a tensor. Raises CheckpointError for an unknown name."""
        return self._file.info(self._original(name))

    def array(self, name: str) -> npt.NDArray[Any] | QuantizedWeight:
        """A tensor's values, a read-only view on the mapped file unless its rows are put in order; of a quantised
        tensor its unpacked codes.

        Raises CheckpointError for an unknown name, and for rows to put in order that are no whole heads.
        """
        original = self._original(name)
        values = self._file.array(original)
        match = _NAME.fullmatch(original)
        if match is None or match["module"] not in self._interleaved:
            return values
        num_rows = values.shape[0]
        if self._head_dim < 2 or self._head_dim % 2 or num_rows % self._head_dim:
            self._file.fail(f"has a tensor {original!r:.80} of {num_rows} rows, which are no heads of {self._head_dim}")
        order = np.arange(num_rows).reshape(-1, self._head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
        return values.take_rows(order) if isinstance(values, QuantizedWeight) else values[order]

    def _original(self, name: str) -> str:
        original = self._originals.get(name)
        if original is None:
            raise CheckpointError(f"{self._file.path} has no tensor {name!r} among its {len(self._originals)}.")
        return original
