"""Decoders whose checkpoints have one matrix for queries, keys and values, and other names than Llama's.

Shapes: D hidden_size, H num_attention_heads, C head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice, rows_by_head
from aethermind.model.blocks import VariantModel

__all__ = ["FusedQkvDecoder", "StoredNames"]

_KINDS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class StoredNames:
    """A family's names of modules.

    Attributes:
        prefix: what all names but the output projection's may begin with.
        layers: what the names of layers begin with, before their number: `h`.
        outside: modules outside layers, by their names in graphs: `{"model.norm": "ln_f"}`.
        in_layer: modules of a layer, by their names in a graph's layer: `{"self_attn.o_proj": "attn.c_proj"}`.
        qkv: the module of queries, keys and values in a layer.
        has_rows_by_head: whether rows of the fused matrix are queries, keys and values of a head, head after head
            [H · 3 · C, D], instead of all queries, all keys and all values [3 · H · C, D].
        head: the output projection.
    """

    prefix: str
    layers: str
    outside: Mapping[str, str]
    in_layer: Mapping[str, str]
    qkv: str
    has_rows_by_head: bool
    head: str = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedQkvDecoder(VariantModel):
    """A decoder with a family's names."""

    stored_names: StoredNames

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map the stored tensors to the graph's names, and cut queries, keys and values apart."""
        names, config = self.stored_names, self.config
        prefix = names.prefix if any(name.startswith(names.prefix) for name in stored.names) else ""
        modules = {own: f"{prefix}{name}" for own, name in names.outside.items()} | {"lm_head": names.head}
        parts = {}
        for layer in range(config.num_hidden_layers):
            base, stored_base = f"model.layers.{layer}", f"{prefix}{names.layers}.{layer}"
            modules |= {f"{base}.{own}": f"{stored_base}.{name}" for own, name in names.in_layer.items()}
            for kind in _KINDS:
                slices = self._slices(f"{stored_base}.{names.qkv}.{kind}")
                for projection, part in zip(("q_proj", "k_proj", "v_proj"), slices, strict=True):
                    parts[f"{base}.self_attn.{projection}.{kind}"] = part
        parts |= {f"{own}.{kind}": TensorSlice(f"{name}.{kind}") for own, name in modules.items() for kind in _KINDS}
        return AdaptedTensors(stored, parts)

    def _slices(self, fused: str) -> list[TensorSlice]:
        """Queries, keys and values in the fused matrix."""
        heads, head_dim = self.config.num_attention_heads, self.config.head_dim
        if self.stored_names.has_rows_by_head:
            return [TensorSlice(fused, order=rows) for rows in rows_by_head(heads, (head_dim,) * 3)]
        width = heads * head_dim
        return [
            TensorSlice(fused, begin=0, end=width),
            TensorSlice(fused, begin=width, end=2 * width),
            TensorSlice(fused, begin=2 * width),
        ]
