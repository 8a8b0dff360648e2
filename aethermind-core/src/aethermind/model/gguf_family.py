"""A model package's description of the GGUF files of one `general.architecture`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from aethermind.checkpoint.gguf_tensors import GgufTransform, inverse_order
from aethermind.text.gguf_tokenizer import SplitRule

__all__ = ["DEEPSEEK_MIXTURE", "GgufFamily", "GgufTransform", "SplitRule", "inverse_order"]

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How the GGUF files of one architecture differ from those of a decoder of Llama's shape.

    Attributes:
        architecture: its name in `architectures` of config.json.
        splits: rules for splitting text, by the values of `tokenizer.ggml.pre` in its files.
        modules: modules of a layer that Llama does not have, or calls otherwise, GGUF's name to Hugging Face's within a
            layer. A name with its ending is one tensor: `{"ssm_dt.bias": "mixer.dt_bias"}`.
        outside: the same for modules outside layers.
        layers: what Hugging Face's names of layers begin with, before their number.
        interleaved: GGUF's names of modules whose rows its converter stored for interleaved rotation, with pairs side
            by side; they are read in Hugging Face's order, halves of a head.
        transforms: how further tensors of a layer are read, by GGUF's names with their endings; a function gets the
            fields of config.json.
        mixture: the architecture of files with experts, where they share the name with dense ones.
        metadata: further fields of config.json, and those that are stored under other keys than Llama's, by name, with
            their keys under the architecture: `{"logit_scale": "logit_scale"}`.
        fields: further fields of config.json, for files that do not have them.
        present: fields that say whether layers have a tensor, with GGUF's name of it:
            `{"conv_bias": "shortconv.conv.bias"}`.
        derive: fields that follow from others; it gets those that were found, arrays as NumPy's.
        is_writable: whether `aethermind quantize` writes files of the family from directories: their tensors differ in
            names, in the order of interleaved rows, in what is added to the weights of norms (`norm_weight_offset` of
            `fields`) and in the stacks of experts only.
        stored_modules: for those, modules that directories call otherwise than their files are read: `{"ffn_gate_exps":
            "block_sparse_moe.experts.w1"}`, without the number of the expert.
    """

    architecture: str
    splits: Mapping[str, SplitRule]
    modules: Mapping[str, str] = field(default_factory=dict)
    interleaved: Collection[str] = ()
    mixture: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers"
    transforms: Mapping[str, GgufTransform] | Callable[[Fields], Mapping[str, GgufTransform]] = field(
        default_factory=dict
    )
    present: Mapping[str, str] = field(default_factory=dict)
    derive: Callable[[Fields], Fields] | None = None
    is_writable: bool = False
    stored_modules: Mapping[str, str] = field(default_factory=dict)


DEEPSEEK_MIXTURE: Mapping[str, str] = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
}
"""The keys of `GgufFamily.metadata` for mixtures of experts in DeepSeek's form (`model.read_deepseek_mixture`)."""
