"""Every architecture of this project: a request has the bits of its lone run in any step, and configs are checked.

The registry lists the architectures, so a new one is tested without being named here. `test_families` compares logits
and tokens with transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from release.distributions import distributions
from tests.core.engine.speculative.drafting import Scripted, speculate_with

from aethermind import LLM, Runtime, SamplingParams
from aethermind.cache.layers import recurrent_of
from aethermind.engine.kv_offload.offload import FetchCosts
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.model.architecture import TextEncoder, cache_layout
from aethermind.testing.families import Bench, Checkpoints, ModelCase
from aethermind.testing.families.parity import random_prompts

BOOTED = Runtime.boot()
OWN = {one.name for one in distributions()}
ARCHITECTURES = [name for name in BOOTED.architectures.names() if BOOTED.architectures.provider(name) in OWN]
MAX_MODEL_LEN = 96
"""The shortest context of a case, which holds the longest prompt with its answer."""
PROMPTS: list[list[int]] = [[5, 9, 30, 41] * 6, *random_prompts(74, 1, 33, 12), [7] * 9]
SAMPLED = {"max_tokens": 16, "logprobs": 3, "ignore_eos": True}
PARAMS = [
    SamplingParams(**SAMPLED, temperature=0.0) if index % 3 else SamplingParams(**SAMPLED, temperature=0.7, seed=index)
    for index in range(len(PROMPTS))
]
FEW_BLOCKS = {"block_size": 4, "num_kv_blocks": 30, "max_num_batched_tokens": 64}
IN_STEPS: dict[str, dict[str, Any]] = {
    "all_at_once": {},
    "chunks_of_1": {"max_num_seqs": 1, "max_num_batched_tokens": 1},
    "chunks_up_to_4": {"max_num_seqs": 3, "max_num_batched_tokens": 4},
    "chunks_up_to_17": {"max_num_seqs": 4, "max_num_batched_tokens": 17},
}
WRONG_VALUES = ("many", -1, [], {"other": 1}, float("nan"))
"""No field of config.json but flags and lists may have one of these."""
Answer = tuple[list[int], Any]


def decoders() -> list[str]:
    models = {name: BOOTED.architectures.get(name).create(dict(first_case(name).config)) for name in ARCHITECTURES}
    return [name for name, model in models.items() if not isinstance(model, TextEncoder)]


def first_case(architecture: str) -> ModelCase:
    found = BOOTED.architectures.find_cases(architecture)
    own = [case for case in found or () if case.architecture == architecture]
    assert own, f"{architecture} has no conformance case: nothing compares it with transformers"
    return own[0]


def answers(llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Answer]:
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], list(params))
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


class Subject:
    """One architecture's model, and the answers to each prompt alone."""

    def __init__(self, architecture: str, checkpoints: Checkpoints) -> None:
        self._bench = Bench(first_case(architecture), BOOTED, "cpu", checkpoints)
        with self.open(enable_prefix_caching=False) as llm:
            self.alone = [answers(llm, [p], [q])[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]
            entries = cache_layout(llm.engine.compiled.model)
        self.is_recurrent = any(recurrent_of(entry) is not None for entry in entries)

    def open(self, **options: Any) -> LLM:
        return self._bench.open(max_model_len=MAX_MODEL_LEN, deterministic=True, **options)


@pytest.fixture(scope="module")
def subject_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    checkpoints = Checkpoints(tmp_path_factory.mktemp)
    return cache(lambda architecture: Subject(architecture, checkpoints))


@pytest.fixture
def subject(architecture: str, subject_of: Callable[[str], Subject]) -> Subject:
    return subject_of(architecture)


every_architecture = pytest.mark.parametrize("architecture", decoders())


def test_the_registry_was_read() -> None:
    assert len(decoders()) >= 28


@every_architecture
@pytest.mark.parametrize("steps", IN_STEPS)
def test_ragged_batches_and_chunks_of_any_size(subject: Subject, steps: str) -> None:
    with subject.open(enable_prefix_caching=False, **IN_STEPS[steps]) as llm:
        assert answers(llm, PROMPTS, PARAMS) == subject.alone


@every_architecture
def test_prefixes_from_the_cache(subject: Subject) -> None:
    """Each prompt extends one that was asked before."""
    with subject.open(block_size=4) as llm:
        for prompt in PROMPTS:
            answers(llm, [prompt[: -(-len(prompt) * 2 // 3)]], PARAMS[:1])
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    assert [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs] == subject.alone
    assert sum(output.num_cached_tokens for output in outputs) >= 16


@every_architecture
def test_prefixes_from_a_store(subject: Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What one engine stored, another one continues from: blocks, and the recurrent states at their ends."""
    monkeypatch.setattr(FetchCosts, "is_worth_fetching", lambda *_: True)
    options = {"block_size": 4, "kv_store": f"disk:{tmp_path / 'kv'}"}
    with subject.open(**options) as llm:
        for prompt in PROMPTS:
            answers(llm, [prompt[: -(-len(prompt) * 2 // 3)]], PARAMS[:1])
        assert llm.engine.kv_offload is not None
        assert llm.engine.kv_offload.flush(60)
    with subject.open(**options) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], PARAMS)
    assert [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs] == subject.alone
    assert sum(output.num_cached_tokens for output in outputs) >= 16


@every_architecture
def test_preempted_requests_that_are_computed_again(subject: Subject) -> None:
    with subject.open(enable_prefix_caching=False, **FEW_BLOCKS) as llm:
        assert answers(llm, PROMPTS, PARAMS) == subject.alone
        assert llm.engine.num_preemptions > 0


@every_architecture
def test_preempted_requests_that_are_swapped_out(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, and recurrent states, go to the host and come back."""
    monkeypatch.setattr(SwapVsRecomputeCosts, "prefers_swap", lambda *_: True)
    with subject.open(enable_prefix_caching=False, swap_space=0.01, **FEW_BLOCKS) as llm:
        assert answers(llm, PROMPTS, PARAMS) == subject.alone
        assert llm.engine.num_preemptions > 0
        assert llm.engine.swap_store is not None
        assert llm.engine.swap_store.num_moved_in > 0


def drafts_of(alone: list[Answer], request: Request, most: int) -> list[int]:
    """The tokens that follow, every third of them wrong."""
    tokens, _ = alone[PROMPTS.index(request.prompt_token_ids)]
    start = len(request.output_token_ids)
    return [token if (start + i) % 3 else (token + 1) % 131 for i, token in enumerate(tokens[start : start + most])]


@every_architecture
def test_verified_drafts(subject: Subject) -> None:
    """Models whose states cannot drop the tokens of wrong drafts refuse to speculate, in one sentence."""
    try:
        llm = subject.open(speculative_method="prompt_lookup", enable_prefix_caching=False)
    except InvalidArgumentError as error:
        assert subject.is_recurrent
        assert "Speculative decoding drops the tokens of wrong drafts" in str(error)
        return
    with llm:
        speculator = speculate_with(llm.engine, Scripted(partial(drafts_of, subject.alone)))
        assert answers(llm, PROMPTS, PARAMS) == subject.alone
        assert 0 < speculator.num_accepted_tokens < speculator.num_draft_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_value_of_the_wrong_kind_is_an_error_that_names_the_field(architecture: str) -> None:
    create, known = (getattr(BOOTED.architectures.get(architecture), name) for name in ("create", "known_fields"))
    config = dict(first_case(architecture).config)
    decoder = config.pop("text_config", None)
    num_refused = 0
    for name in {*(decoder or config), *known} - {"text_config", "vision_config"}:
        for value in WRONG_VALUES:
            raw = {**config, name: value} if decoder is None else {**config, "text_config": {**decoder, name: value}}
            try:
                create(raw)
            except ConfigError as error:
                num_refused += 1
                assert re.search(rf"\b{name}\b", str(error)), f"{name} is {value!r}, and the error is: {error}"
                assert "\n" not in str(error)
    assert num_refused >= 30
