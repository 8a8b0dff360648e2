"""A context without its oldest tokens but the first ones, moved left: logits as if the keys had been computed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.qwen2.checkpoints import CASES, reference_model
from transformers.models.qwen2.modeling_qwen2 import rotate_half

from aethermind import LLM, Runtime
from aethermind.cache.outcome import CacheOutcome
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import random_prompts

TEXT = "text"
NUM_SINKS, NUM_DROPPED, NUM_TOKENS = 4, 12, 30
BY_NAME = {family.name: family for family in CASES}


def reference_logits(model: Any, text: Sequence[int], next_tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """Transformers' logits of `next_tokens`, over a cache whose keys are rotated from scratch for their new places."""
    raw_keys: list[torch.Tensor] = []
    hooks = [
        getattr(layer.self_attn, "k_norm", layer.self_attn.k_proj).register_forward_hook(
            lambda _, __, output: raw_keys.append(output)
        )
        for layer in model.model.layers
    ]
    with torch.no_grad():
        whole = model(torch.tensor([list(text)]), use_cache=True).past_key_values
    for hook in hooks:
        hook.remove()
    kept = [*range(NUM_SINKS), *range(NUM_SINKS + NUM_DROPPED, len(text))]
    places = torch.arange(len(kept))[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float64), places)
    cache = transformers.DynamicCache()
    for index, raw in enumerate(raw_keys):
        values = whole.layers[index].values
        keys = raw.reshape(1, len(text), values.shape[1], -1).transpose(1, 2)[:, :, kept]
        cache.update(keys * cos[:, None] + rotate_half(keys) * sin[:, None], values[:, :, kept], index)
    with torch.no_grad():
        positions = torch.arange(len(kept), len(kept) + len(next_tokens))[None]
        logits = model(torch.tensor([list(next_tokens)]), past_key_values=cache, position_ids=positions).logits[0]
    return logits.double().numpy()


def run_step(llm: LLM, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Compute the next tokens of the sequence, which are reserved, by the plain graph; the logits of each."""
    cache, executor = llm.engine.cache, llm.engine.runner.executor
    start, count, table = cache.num_tokens(TEXT), len(token_ids), cache.block_table(TEXT)
    given = {
        "token_ids": token_ids,
        "positions": [cache.position(TEXT, index) for index in range(start, start + count)],
        "cu_seqlens_q": (0, count),
        "seqlens_k": (start + count,),
        "block_tables": table,
        "logits_rows": range(count),
        **{name: [0] * count for name in ("temperature", "top_k", "top_p", "min_p", "uniform")},
    }
    for name, values in given.items():
        executor.host_inputs[name][: len(values)] = values
    cache.fill_slots(TEXT, start, count, executor.host_inputs["slot_mapping"])
    sizes = {"T": count, "S": 1, "R": count, "B": len(table)}
    symbols = tuple(sizes.get(name, 0) for name in executor.plan.symbols)
    executor.run(symbols)
    executor.synchronize()
    logits: np.ndarray[Any, Any] = executor.output("logits", symbols).copy()
    return logits


@pytest.mark.parametrize(
    ("kv_cache_dtype", "tolerance"), [("auto", 2e-4), ("int8", 0.05), ("fp8", 0.2)], ids=["float32", "int8", "fp8"]
)
@pytest.mark.parametrize("name", ["head_dim_80", "yarn_old_spelling", "linear", "qwen3_head_dim_128"])
def test_logits_are_those_of_keys_computed_at_their_new_positions(
    device: str,
    runtime: Runtime,
    checkpoint: Callable[[ModelCase], Path],
    name: str,
    kv_cache_dtype: str,
    tolerance: float,
) -> None:
    directory = checkpoint(BY_NAME[name])
    llm = LLM(
        directory,
        device=device,
        dtype="float32",
        kv_cache_dtype=kv_cache_dtype,
        block_size=4,
        max_num_seqs=NUM_TOKENS,
        max_num_batched_tokens=NUM_TOKENS,
        runtime=runtime,
    )
    text, next_tokens = random_prompts(NUM_TOKENS, 5)
    cache = llm.engine.cache
    cache.open(TEXT)
    cache.reserve(TEXT, NUM_TOKENS)
    run_step(llm, text)
    cache.commit(TEXT, NUM_TOKENS)
    first_moved = NUM_SINKS + NUM_DROPPED
    assert cache.remove(TEXT, NUM_SINKS, first_moved) is CacheOutcome.OK
    assert cache.shift(TEXT, first_moved, -NUM_DROPPED) is CacheOutcome.OK
    reserved = cache.reserve(TEXT, len(next_tokens))
    unturned = run_step(llm, next_tokens)
    llm.engine.runner.apply_rope_shift(reserved.shifts)
    turned = run_step(llm, next_tokens)
    expected = reference_logits(reference_model(directory), text, next_tokens)
    allowed = tolerance * np.abs(expected).max()
    assert np.abs(turned - expected).max() <= allowed
    assert np.abs(unturned - expected).max() > 2 * allowed, "keys left where they were would pass as well"
