"""Random Hugging Face checkpoints in many shapes, written by transformers, and transformers' own answers for them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

import aethermind_qwen2

__all__ = ["FAMILIES", "Family", "logits_of", "reference_model", "write_checkpoint"]

DEMO = Path(aethermind_qwen2.__file__).parent / "demo"
VOCAB_SIZE = 131

logging.disable_progress_bar()


@dataclass(frozen=True, eq=False)
class Family:
    """A shape: what differs from a small common configuration, and how its config.json is written.

    `spelling` is today's (as transformers writes it) or older; `max_model_len` is given to the engine where the context
    is longer than max_position_embeddings.
    """

    name: str
    architecture: str = "Qwen2"
    options: Mapping[str, Any] = field(default_factory=dict)
    spelling: str = "today"
    max_shard_size: str = "1GB"
    max_model_len: int | None = None

    def __str__(self) -> str:
        return self.name


_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 3}

FAMILIES: Sequence[Family] = (
    Family("head_dim_8"),
    Family(
        "head_dim_64_one_kv_head",
        options={"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 64},
    ),
    Family(
        "seven_kv_heads_tied_odd_intermediate",
        options={
            "hidden_size": 112,
            "intermediate_size": 77,
            "num_attention_heads": 14,
            "num_key_value_heads": 7,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        "head_dim_80",
        options={"hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 130},
    ),
    Family("old_spelling", spelling="older", options={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    Family("sharded_tied", options={"tie_word_embeddings": True, "num_hidden_layers": 3}, max_shard_size="12KB"),
    Family(
        "sliding_by_layer_types",
        options={**_WINDOWS, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    Family("sliding_by_max_window_layers", spelling="older", options={**_WINDOWS, "max_window_layers": 1}),
    Family("yarn", options={"rope_parameters": _YARN, "head_dim": 64}),
    Family("yarn_old_spelling", spelling="older", options={"rope_parameters": {**_YARN, "attention_factor": 1.3}}),
    Family("linear", options={"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}}),
    Family(
        "dynamic_within", options={"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}
    ),
    Family(
        "dynamic_beyond",
        spelling="older",
        options={
            "max_position_embeddings": 32,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        },
        max_model_len=128,
    ),
    Family(
        "qwen3_head_dim_128",
        "Qwen3",
        {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
    ),
    Family("qwen3_head_dim_64_tied", "Qwen3", {"hidden_size": 40, "head_dim": 64, "tie_word_embeddings": True}),
    Family("qwen3_sliding", "Qwen3", {**_WINDOWS, "head_dim": 16, "max_window_layers": 2}),
)


def write_checkpoint(family: Family, directory: Path) -> Path:
    """Write a family's model with random weights and the demo model's tokenizer; the same for every call."""
    torch.manual_seed(sum(map(ord, family.name)))
    config_class = getattr(transformers, f"{family.architecture}Config")
    model = getattr(transformers, f"{family.architecture}ForCausalLM")(config_class(**{**_COMMON, **family.options}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter)
    model.save_pretrained(directory, max_shard_size=family.max_shard_size)
    if family.spelling == "older":
        _respell(directory / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, directory / name)
    return directory


def _randomise(name: str, parameter: torch.nn.Parameter) -> None:
    """Norm weights around 1 and biases around 0, neither trivial; matrices that keep the size of what passes."""
    if name.endswith("norm.weight"):
        parameter.uniform_(0.5, 1.5)
    elif name.endswith("bias"):
        parameter.normal_(std=0.5)
    else:
        parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)


def _respell(path: Path) -> None:
    """Rewrite a config.json as transformers 4 and the Qwen team wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config.pop("layer_types")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


@cache
def reference_model(
    directory: Path,
    rounded_to: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float64,
    context: int | None = None,
) -> Any:
    """Transformers' model of a checkpoint, its weights rounded to one dtype and computed with in another.

    `context` fixes a dynamically scaled rotary embedding at the frequencies for that many positions, as an engine that
    keeps keys has to.
    """
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=rounded_to).to(dtype).eval()
    if context is not None:
        rotary = model.model.rotary_emb
        rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, "cpu", seq_len=context)
        rotary.max_seq_len_cached = rotary.original_max_seq_len = context
    return model


def logits_of(model: Any, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Transformers' logits for a whole sequence at once, float64 [len(token_ids), V]."""
    with torch.no_grad():
        logits = model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits.double().numpy()
