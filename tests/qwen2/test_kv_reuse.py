"""Layers that share keys and values: cosines and logits as transformers' own caches give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.qwen2.checkpoints import CASES, reference_model
from transformers import DynamicCache

from aethermind import LLM, Runtime
from aethermind.engine.kv_reuse import KVReuse, kv_similarity
from aethermind.errors import InvalidArgumentError
from aethermind.testing.families import ModelCase
from aethermind.testing.families.parity import assert_close_to, random_prompts

(THREE_LAYERS,) = (family for family in CASES if family.name == "sharded_tied")
(TEXT,) = random_prompts(23)


class SharingCache(DynamicCache):
    """Gives readers what their source has cached."""

    def __init__(self, sources: Mapping[int, int]) -> None:
        super().__init__()
        self.sources = sources

    def update(self, keys: Any, values: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        own = super().update(keys, values, layer_idx, *args, **kwargs)
        if layer_idx not in self.sources:
            return own
        source = self.layers[self.sources[layer_idx]]
        return source.keys, source.values


@pytest.fixture
def llm(device: str, runtime: Runtime, checkpoint: Callable[[ModelCase], Path]) -> LLM:
    return LLM(
        checkpoint(THREE_LAYERS),
        device=device,
        dtype="float32",
        max_num_seqs=32,
        max_num_batched_tokens=32,
        block_size=8,
        runtime=runtime,
    )


@pytest.fixture
def model(checkpoint: Callable[[ModelCase], Path]) -> Any:
    return reference_model(checkpoint(THREE_LAYERS))


def run(model: Any, cache: DynamicCache) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logits: np.ndarray[Any, Any] = model(torch.tensor([TEXT]), past_key_values=cache).logits[0].numpy()
    return logits


def test_cosines_are_those_of_transformers_caches(llm: LLM, model: Any) -> None:
    cache = DynamicCache()
    run(model, cache)
    for found, name in zip(kv_similarity(llm.engine, TEXT), ("keys", "values"), strict=True):
        for i, first in enumerate(cache.layers):
            for j, second in enumerate(cache.layers):
                rows = zip(getattr(first, name)[0].reshape(-1, 8), getattr(second, name)[0].reshape(-1, 8), strict=True)
                cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in rows]
                assert found[i, j] == pytest.approx(np.mean(cosines), abs=1e-5)


@pytest.mark.parametrize("sources", [{1: 0}, {2: 1}, {1: 0, 2: 0}], ids=str)
def test_logits_are_those_of_a_cache_that_gives_readers_their_sources(
    llm: LLM, model: Any, sources: dict[int, int]
) -> None:
    expected = run(model, SharingCache(sources))
    assert_close_to(expected, list(KVReuse(llm.engine, sources).logits(TEXT)))
    assert np.abs(expected - run(model, DynamicCache())).max() > 0.1, "sharing should show"


@pytest.mark.parametrize("sources", [{0: 0}, {1: 1}, {1: 2}, {3: 0}, {1: -1}], ids=str)
def test_layers_that_cannot_share_are_named(llm: LLM, sources: dict[int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot reuse the keys and values of layer"):
        KVReuse(llm.engine, sources)


def test_codes_are_not_compared(runtime: Runtime) -> None:
    llm = LLM("demo", device="numpy", kv_cache_dtype="int8", max_model_len=32, runtime=runtime)
    with pytest.raises(InvalidArgumentError, match="auto as --kv-cache-dtype"):
        kv_similarity(llm.engine, [1, 2, 3])
