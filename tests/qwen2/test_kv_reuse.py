"""Layers that share keys and values: cosines and logits as transformers' own caches give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.qwen2.checkpoints import CASES, reference_model
from transformers import DynamicCache

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cli.bench.quality import diverge
from aethermind.engine.kv_reuse.distillation import distill
from aethermind.engine.kv_reuse.sharing import KVReuse, kv_similarity
from aethermind.engine.text_passes.text_pass import text_logits
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
def test_shared_layers_give_the_logits_of_a_cache_with_copied_sources(
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
    with pytest.raises(InvalidArgumentError, match="auto as kv_cache_dtype"):
        kv_similarity(llm.engine, [1, 2, 3])


@pytest.mark.parametrize("sources", [{1: 0}, {1: 0, 2: 0}], ids=str)
def test_distilled_parameters_are_those_of_a_model_that_shares(llm: LLM, model: Any, sources: dict[int, int]) -> None:
    found = distill(llm.engine, sources, random_prompts(19, 23))
    assert {name.split(".")[2] for name in found} == {str(reader) for reader in sources}
    logits = list(KVReuse(llm.engine, sources, found).logits(TEXT))
    taught = deepcopy(model)
    taught.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()}, strict=False)
    assert_close_to(run(taught, SharingCache(sources)), logits)
    plain = KVReuse(llm.engine, sources).logits(TEXT)
    assert np.abs(plain - np.stack(logits)).max() > 0.1, "the parameters should show"


def test_distillation_recovers_the_quality_lost_by_sharing(runtime: Runtime) -> None:
    llm = LLM("demo", device="cpu", dtype="float32", max_num_seqs=128, max_num_batched_tokens=128, runtime=runtime)
    prompt = llm.tokenizer.encode("Once upon a time")
    sampled = SamplingParams(max_tokens=120, ignore_eos=True)
    answers = [
        llm.generate({"prompt_token_ids": prompt}, replace(sampled, seed=seed))[0].outputs[0].token_ids
        for seed in range(7)
    ]
    text, *lessons = [[*prompt, *answer] for answer in answers]
    expected = text_logits(llm.engine, text)
    parameters = distill(llm.engine, {1: 0}, lessons)
    shared, mended = (KVReuse(llm.engine, {1: 0}, given).logits(text) for given in (None, parameters))
    assert diverge(expected, mended).kl_mean < 0.8 * diverge(expected, shared).kl_mean


def test_models_with_query_norms_are_not_distilled(runtime: Runtime, checkpoint: Callable[[ModelCase], Path]) -> None:
    normed = next(family for family in CASES if "qwen3" in family.name)
    llm = LLM(checkpoint(normed), device="numpy", dtype="float32", max_model_len=32, runtime=runtime)
    with pytest.raises(InvalidArgumentError, match="Layer 1 cannot be distilled"):
        distill(llm.engine, {1: 0}, random_prompts(5))
