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
    """How the GGUF files of one architecture differ from those of Llama.

    Attributes:
        architecture: the name in `architectures` of config.json.
        splits: rules of pre-tokenization, by the values of `tokenizer.ggml.pre` in the files.
        modules: the modules of a layer that Llama does not have, or that have another name there: GGUF's name to
            Hugging Face's name within a layer. A name with a suffix is one tensor: `{"ssm_dt.bias": "mixer.dt_bias"}`.
        outside: the same for modules outside layers.
        layers: the prefix of Hugging Face's names of layers, before the number of the layer.
        interleaved: GGUF's names of modules whose rows are stored for interleaved rotation, with the elements of a pair
            next to each other. They are read in Hugging Face's order, in which the elements of a pair are half a head
            apart.
        transforms: how other tensors of a layer are read, by GGUF's names with their suffixes; or a function that
            returns them, given the fields of config.json.
        mixture: the architecture of files with experts, if these have the same `general.architecture` as dense ones.
        metadata: fields of config.json that Llama does not have, or that are stored under another key, with the key
            after the architecture's name: `{"logit_scale": "logit_scale"}`.
        fields: values of fields of config.json that the files do not have.
        present: fields that say whether layers have a tensor, with GGUF's name of the tensor:
            `{"conv_bias": "shortconv.conv.bias"}`.
        derive: a function that returns fields that follow from others. Its argument is the fields so far, with arrays
            as NumPy arrays.
        is_writable: whether `aethermind quantize` can write files of the family from directories, because their tensors
            differ only in names, in the order of interleaved rows, in what is added to the weights of norms
            (`norm_weight_offset` of `fields`) and in the stacks of experts.
        stored_modules: the modules that have another name in directories than the one under which the files are read:
            `{"ffn_gate_exps": "block_sparse_moe.experts.w1"}`, without the number of the expert. For families that are
            writable.
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
"""`GgufFamily.metadata` of mixtures of experts with DeepSeek's field names (`model.read_deepseek_mixture`)."""
