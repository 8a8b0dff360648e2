"""The reference by transformers: writes random checkpoints, and computes their outputs in float64."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode

from aethermind.testing.families.case import ModelCase, Outputs

__all__ = ["TransformersReference", "outputs_of", "pretrained"]


class TransformersReference:
    """The transformers class with the name of the architecture; implements `Reference`."""

    def write(self, case: ModelCase, directory: Path) -> None:
        """Write random weights, those of norms around 1, biases around 0."""
        torch.manual_seed(sum(map(ord, case.name)))
        model_class = getattr(transformers, case.architecture)
        model = model_class(model_class.config_class(**case.config))
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # tied parameters occur once
                _randomise(model.get_submodule(name.rpartition(".")[0]), name, parameter)
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        model.save_pretrained(directory, max_shard_size=case.max_shard_size)
        if case.rewrite_config is not None:
            path = directory / "config.json"
            path.write_text(json.dumps(case.rewrite_config(json.loads(path.read_text()))))

    def outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """Return the function that computes logits or hidden states from the token ids of a text."""
        outputs = partial(outputs_of, pretrained(case.architecture, directory, context=case.max_model_len))
        return partial(_in_float64, outputs) if case.has_float32_parts else outputs

    def float32_outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """Return the same function, computed in float32."""
        model = pretrained(case.architecture, directory, dtype=torch.float32, context=case.max_model_len)
        return partial(outputs_of, model)


def pretrained(
    architecture: str,
    directory: Path,
    rounded_to: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float64,
    context: int | None = None,
) -> Any:
    """Return transformers' model of a checkpoint, with weights rounded to `rounded_to`, computing in `dtype`.

    `context` fixes the frequencies of a dynamically scaled rotary embedding for that many positions, as required with a
    KV cache.
    """
    torch.set_num_threads(1)
    # Not all releases compute soft caps and sinks in their other kernels of attention.
    options = {"dtype": rounded_to, "attn_implementation": "eager"}
    model = getattr(transformers, architecture).from_pretrained(directory, **options).to(dtype).eval()
    if hasattr(model, "set_experts_implementation"):  # grouped products of experts do not compute float64
        model.set_experts_implementation("eager")
    if context is not None:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rotary = model.model.rotary_emb
        rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, "cpu", seq_len=context)
        rotary.max_seq_len_cached = rotary.original_max_seq_len = context
        rotary.original_inv_freq = rotary.long_inv_freq = rotary.inv_freq.clone()
    return model


def outputs_of(model: Any, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a model's logits for a whole text, or hidden states where it has none: float64 [T, V] or [T, hidden]."""
    with torch.no_grad():
        found = model(torch.tensor([list(token_ids)]))
    rows = found.logits if "logits" in found else found.last_hidden_state
    values: np.ndarray[Any, Any] = rows[0].double().numpy()
    return values


class _KeepFloat64(TorchFunctionMode):
    """Keeps float64 tensors in float64 where a module converts them to float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to and args[0].dtype is torch.float64 and args[1:] == (torch.float32,):
            return args[0].contiguous()
        return func(*args, **kwargs)


def _in_float64(outputs: Outputs, token_ids: Sequence[int]) -> Any:
    with _KeepFloat64():
        return outputs(token_ids)


def _randomise(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Initialise a parameter so that magnitudes of activations are preserved."""
    if "Norm" in type(module).__name__ and name.endswith("weight"):
        lowest = 0.5 if parameter.any() else -0.5  # norms that begin at zero multiply by 1 + weight (Gemma)
        parameter.uniform_(lowest, lowest + 1)
    elif parameter.dim() == 1:
        parameter.normal_(std=0.5)
    else:
        parameter.normal_(std=1.3 * parameter.shape[-1] ** -0.5)
