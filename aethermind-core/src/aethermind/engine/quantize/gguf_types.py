"""Which block type each tensor of a GGUF file gets, by the name of a mixture such as Q4_K_M.

The rules are llama.cpp's: matrices that lose the most accuracy get a type of more bits. Those are the output projection
(the embedding table, where it is that), and in mixtures that end with M half of the value and down projections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aethermind.checkpoint.gguf_encoding import ENCODINGS

__all__ = ["GGUF_FORMATS", "GgufFormat"]

_LAYER = re.compile(r"blk\.(\d+)\.(attn_v|ffn_down)(?:_exps|_shexp)?\.")
_OTHER_TYPES = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Types for rows that are no multiples of 256."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """A mixture of block types: that of most matrices, of the output, and of half of the sensitive ones in layers.

    `file_type` is its number in `general.file_type` (llama.cpp: LLAMA_FTYPE).
    """

    name: str
    file_type: int
    base: str
    output: str
    sensitive: str

    def type_of(self, name: str, columns: int, num_layers: int, *, is_output: bool) -> str:
        """The type of a matrix by GGUF's name; F16 where rows are no multiples of a block."""
        found = _LAYER.match(name)
        wanted = self.base
        if is_output:
            wanted = self.output
        elif found is not None and _has_more_bits(int(found[1]), num_layers):
            wanted = self.sensitive
        if wanted in ENCODINGS and columns % ENCODINGS[wanted].num_values:
            wanted = _OTHER_TYPES.get(wanted, wanted)
        return wanted if wanted not in ENCODINGS or columns % ENCODINGS[wanted].num_values == 0 else "F16"


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Whether a layer is one of the first or last eighth, or every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


GGUF_FORMATS: Mapping[str, GgufFormat] = MappingProxyType(
    {
        format.name: format
        for format in (
            GgufFormat("q4_0", 2, "Q4_0", "Q6_K", "Q4_0"),
            GgufFormat("q5_0", 8, "Q5_0", "Q6_K", "Q5_0"),
            GgufFormat("q8_0", 7, "Q8_0", "Q8_0", "Q8_0"),
            GgufFormat("q4_k_s", 14, "Q4_K", "Q6_K", "Q4_K"),
            GgufFormat("q4_k_m", 15, "Q4_K", "Q6_K", "Q6_K"),
            GgufFormat("q5_k_s", 16, "Q5_K", "Q6_K", "Q5_K"),
            GgufFormat("q5_k_m", 17, "Q5_K", "Q6_K", "Q6_K"),
            GgufFormat("q6_k", 18, "Q6_K", "Q6_K", "Q6_K"),
            GgufFormat("f16", 1, "F16", "F16", "F16"),
            GgufFormat("bf16", 32, "BF16", "BF16", "BF16"),
        )
    }
)
"""The mixtures by name."""
