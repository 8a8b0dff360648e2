"""Decoders whose checkpoints have one fused matrix for queries, keys and values, and other names than Llama's.

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
    """The names of modules in a family's checkpoints.

    Attributes:
        prefix: an optional prefix of all names but that of the LM head.
        layers: the name of layers before their number, such as `h`.
        outside: the names of modules outside layers, by their names in the graph: `{"model.norm": "ln_f"}`.
        in_layer: the names of modules in a layer, by their names in a layer of the graph:
            `{"self_attn.o_proj": "attn.c_proj"}`.
        qkv: the name of the fused matrix of queries, keys and values in a layer.
        has_rows_by_head: whether the fused matrix has queries, keys and values of one head after another,
            [H · 3 · C, D], instead of all queries, then all keys, then all values, [3 · H · C, D].
        head: the name of the LM head.
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
    """A decoder whose checkpoints have these names and a fused matrix for queries, keys and values."""

    stored_names: StoredNames

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map the stored tensors to the graph's names, and slice queries, keys and values out of the fused matrix."""
        names, config = self.stored_names, self.config
        prefix = names.prefix if any(name.startswith(names.prefix) for name in stored.names) else ""
        modules = {name: f"{prefix}{stored_name}" for name, stored_name in names.outside.items()}
        modules["lm_head"] = names.head
        slices = {}
        for layer in range(config.num_hidden_layers):
            base, stored_base = f"model.layers.{layer}", f"{prefix}{names.layers}.{layer}"
            modules |= {
                f"{base}.{name}": f"{stored_base}.{stored_name}" for name, stored_name in names.in_layer.items()
            }
            for kind in _KINDS:
                qkv = self._qkv_slices(f"{stored_base}.{names.qkv}.{kind}")
                for projection, rows in zip(("q_proj", "k_proj", "v_proj"), qkv, strict=True):
                    slices[f"{base}.self_attn.{projection}.{kind}"] = rows
        for name, stored_name in modules.items():
            slices |= {f"{name}.{kind}": TensorSlice(f"{stored_name}.{kind}") for kind in _KINDS}
        return AdaptedTensors(stored, slices)

    def _qkv_slices(self, fused: str) -> list[TensorSlice]:
        """Return the slices of the fused tensor with queries, keys and values."""
        heads, head_dim = self.config.num_attention_heads, self.config.head_dim
        if self.stored_names.has_rows_by_head:
            return [TensorSlice(fused, order=rows) for rows in rows_by_head(heads, (head_dim,) * 3)]
        width = heads * head_dim
        return [
            TensorSlice(fused, begin=0, end=width),
            TensorSlice(fused, begin=width, end=2 * width),
            TensorSlice(fused, begin=2 * width),
        ]
