"""Models with sliding windows, whose layers free the blocks behind the window: tokens equal those of masks alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.models import copy_demo

from aethermind import LLM, SamplingParams
from aethermind.cache import CacheOutcome, KVCache
from aethermind.cache.groups import FREED
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.kv_offload import fingerprint
from aethermind.engine.loading import kv_plan
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts
from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind_sim.backend import SimBackend

WINDOW = 24
LAYER_TYPES = ["sliding_attention", "full_attention", *["sliding_attention"] * 2]
MAX_MODEL_LEN = 768
STEP = 64
"""Tokens of a step: chunks are longer than the window, prompts many times as long."""

Open = Callable[..., LLM]


@pytest.fixture(params=["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    fields = {
        "architectures": [request.param],
        "num_hidden_layers": len(LAYER_TYPES),
        "layer_types": LAYER_TYPES,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_position_embeddings": MAX_MODEL_LEN,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    return copy_demo(tmp_path / "model", fields)


@pytest.fixture
def open_model(model: Path) -> Iterator[Open]:
    """Open the model with random weights."""
    opened: list[LLM] = []

    def open_it(**options: Any) -> LLM:
        given = {
            "device": "cpu",
            "dtype": "float32",
            "load_format": "dummy",
            "max_num_batched_tokens": STEP,
            "max_num_seqs": 8,
            **options,
        }
        opened.append(LLM(str(model), **given))
        return opened[-1]

    yield open_it
    for llm in opened:
        llm.close()


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch, open_model: Open) -> Open:
    """Open the model with one group of layers, whose windows are masks."""

    def open_it(**options: Any) -> LLM:
        with monkeypatch.context() as changed:
            changed.setattr(kv_plan, "group_layers", lambda *_: ())
            return open_model(**options)

    return open_it


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 400, count).tolist() for count in (430, 11, 601, 300)]


def tokens_of(llm: LLM, given: list[list[int]], **params: Any) -> list[list[list[int]]]:
    chosen = SamplingParams(**{"temperature": 0.8, "seed": 5, "max_tokens": 40, "ignore_eos": True, **params})
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in given], chosen)
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


def num_freed(llm: LLM, request_id: str) -> int:
    cache = llm.engine.cache
    return sum(cache.block_table(request_id, group).count(FREED) for group in range(1, cache.num_groups))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "numpy", "kv_cache_dtype": "int8", "enable_prefix_caching": False},
        {"block_size": 1, "max_num_batched_tokens": 96},
        {"block_size": 48},
        {"speculative_method": "prompt_lookup", "num_speculative_tokens": 3},
        {"tensor_parallel_size": 2},
    ],
    ids=["chunks", "int8", "blocks of 1", "blocks of 48", "speculation", "ranks"],
)
def test_tokens_equal_those_of_windows_that_only_mask(
    open_model: Open, masked: Open, tmp_path: Path, options: dict[str, Any]
) -> None:
    if "tensor_parallel_size" in options:  # other ranks are other processes: there a KV store keeps one group
        alone = open_model(**options, kv_store=f"disk:{tmp_path / 'kv'}")
    else:
        alone = masked(**options)
    assert len(alone.engine.compiled.cache_spec.groups) == 1
    expected = tokens_of(alone, prompts())
    llm = open_model(**options)
    assert len(llm.engine.compiled.cache_spec.groups) == 4
    assert tokens_of(llm, prompts()) == expected
    assert tokens_of(llm, prompts()) == expected, "with prefixes in the cache"
    assert llm.engine.cache.num_available_blocks == llm.engine.cache.pool.num_blocks


@pytest.mark.parametrize(
    "options",
    [{}, {"swap_space": 0.01}, {"swap_space": 0.01, "device": "sim"}, {"enable_prefix_caching": False}],
    ids=["recomputed", "swapped", "swapped beside steps", "without a prefix cache"],
)
def test_preempted_requests_resume_with_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, open_model: Open, masked: Open, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(SwapVsRecomputeCosts, "prefers_swap", lambda *_: True)
    given = [prompt[:190] for prompt in prompts() if len(prompt) > 190]
    expected = tokens_of(masked(**options), given, max_tokens=120)
    llm = open_model(num_kv_blocks=120, **options)
    assert tokens_of(llm, given, max_tokens=120) == expected
    assert llm.engine.num_preemptions > 0
    store = llm.engine.swap_store
    assert (store is not None and store.num_moved_out > 0) == ("swap_space" in options)
    assert llm.engine.cache.num_available_blocks == llm.engine.cache.pool.num_blocks


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_chunks_of_a_prompt_that_fills_the_cache_shrink(
    open_model: Open, masked: Open, enable_prefix_caching: bool
) -> None:
    """Prompts are computed in a pool that has fewer blocks than whole chunks of the last tokens need."""
    options = {"max_num_batched_tokens": 256, "enable_prefix_caching": enable_prefix_caching}
    text = np.random.default_rng(8).integers(0, 400, MAX_MODEL_LEN - 8).tolist()
    given = [text, text[100:]]
    expected = tokens_of(masked(**options), given, max_tokens=8)
    num_blocks = open_model(**options).engine.compiled.cache_spec.num_blocks_for(MAX_MODEL_LEN)
    llm = open_model(**options, num_kv_blocks=num_blocks)
    assert llm.engine.compiled.max_model_len == MAX_MODEL_LEN
    chunks: list[int] = []
    commit = KVCache.commit

    def recorded(cache: KVCache, seq_id: str, num_new_tokens: int) -> CacheOutcome:
        chunks.append(num_new_tokens)
        return commit(cache, seq_id, num_new_tokens)

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(KVCache, "commit", recorded)
        assert [tokens_of(llm, [one], max_tokens=8)[0] for one in given] == expected
    assert 256 in chunks
    assert any(64 <= count < 256 and count % 16 == 0 for count in chunks)
    assert llm.engine.num_preemptions == 0


def test_prompts_reuse_prefixes_of_any_length(open_model: Open, masked: Open) -> None:
    """The blocks that a window left behind are found again as long as they are not evicted."""
    first = prompts()[2]
    others = [[*first[:count], *range(20)] for count in (40, 150, 300, 420, 600)]
    expected = tokens_of(masked(enable_prefix_caching=False), others)
    llm = open_model()
    tokens_of(llm, [first])
    given = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
    outputs = [llm.generate([{"prompt_token_ids": prompt}], given)[0] for prompt in others]
    assert [[output.outputs[0].token_ids] for output in outputs] == expected
    assert [output.num_cached_tokens for output in outputs] == [count // 16 * 16 for count in (40, 150, 300, 420, 600)]


def test_padded_decode_steps_have_the_tables_of_all_groups(
    monkeypatch: pytest.MonkeyPatch, open_model: Open, masked: Open
) -> None:
    """A device with prepared batch sizes runs padding rows, which write no slot of any group."""
    create = NumpyBackend.__init__

    def with_sizes(self: NumpyBackend) -> None:
        create(self)
        self.capabilities = replace(self.capabilities, batch_sizes=(2, 4, 8))

    expected = tokens_of(masked(device="numpy"), prompts())
    monkeypatch.setattr(NumpyBackend, "__init__", with_sizes)
    llm = open_model(device="numpy")
    assert llm.engine.runner._padding is not None
    assert tokens_of(llm, prompts()) == expected


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_samples_that_start_late_compute_the_prompt_again(
    open_model: Open, masked: Open, enable_prefix_caching: bool
) -> None:
    """Two of four samples run at a time. When they end, windows have freed what the last token of the prompt sees."""
    options = {"max_num_seqs": 2, "enable_prefix_caching": enable_prefix_caching}
    given = [prompts()[3]]
    expected = tokens_of(masked(**options), given, n=4, max_tokens=250)
    assert tokens_of(open_model(**options), given, n=4, max_tokens=250) == expected


def test_a_draft_model_frees_blocks_of_its_own(open_model: Open, masked: Open, model: Path) -> None:
    options = {"speculative_method": "draft", "draft_model": str(model), "num_speculative_tokens": 3}
    expected = tokens_of(masked(**options), prompts(), temperature=0.0)
    llm = open_model(**options)
    assert llm.engine.compiled.draft is not None
    assert len(llm.engine.compiled.draft.cache_spec.groups) == 4
    assert tokens_of(llm, prompts(), temperature=0.0) == expected


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_another_engine_resumes_saved_sequences(open_model: Open, masked: Open, kv_cache_dtype: str) -> None:
    (prompt,) = given = [prompts()[0]]
    whole = tokens_of(masked(kv_cache_dtype=kv_cache_dtype), given)[0][0]
    first, second = (open_model(kv_cache_dtype=kv_cache_dtype) for _ in range(2))
    engine = first.engine
    engine.add_request("r", prompt, SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True))
    while not engine.running or len(engine.running[0].output_token_ids) < 10:
        engine.step()
    assert num_freed(first, "r") > 0
    request = engine.running[0]
    tokens = [*request.prompt_token_ids, *request.output_token_ids][: engine.cache.num_tokens("r")]
    contents = [
        MemoryContents(llm.engine.runner.kv_memory, fingerprint(llm.engine.compiled)) for llm in (first, second)
    ]
    saved = engine.cache.save("r", contents[0], tokens)
    assert saved.outcome is CacheOutcome.OK
    cache = second.engine.cache
    assert cache.load("s", saved.data, contents[1], tokens).num_cached_tokens == len(tokens)
    assert cache.release("s", tokens) is CacheOutcome.OK
    rest = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
    (output,) = second.generate([{"prompt_token_ids": prompt}], rest)
    assert output.outputs[0].token_ids == whole
    cached = len(prompt) - 1 if len(prompt) % 16 == 0 else len(prompt)
    assert output.num_cached_tokens == cached // 16 * 16


def test_a_failed_step_is_computed_again_behind_the_window(open_model: Open, masked: Open) -> None:
    """Each step that fails had the next one enqueued behind it, for which windows freed blocks."""
    options = {"device": "sim", "enable_prefix_caching": False}
    given = prompts()[:2]
    expected = tokens_of(masked(**options), given)
    llm = open_model(**options)
    engine, backend = llm.engine, llm.engine.compiled.open_device.backend
    assert isinstance(backend, SimBackend)
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
    for index, prompt in enumerate(given):
        engine.add_request(str(index), prompt, params)
    answers: dict[str, list[int]] = {}
    faults = [(6, 3), (30, 2)]
    num_failed = 0
    while engine.has_unfinished:
        if faults and engine.running and engine.running[0].num_computed_tokens > 64 * faults[0][0] // 6:
            backend.faults.inject("copy", faults.pop(0)[1])
        try:
            outputs = engine.step()
        except DeviceError:
            num_failed += 1
            continue
        answers.update({one.request_id: one.outputs[0].token_ids for one in outputs if one.finished})
    assert num_failed == 2
    assert [[answers[str(index)]] for index in range(len(given))] == expected


def test_tables_name_a_block_of_the_sequence_in_place_of_freed_ones(open_model: Open) -> None:
    """Kernels from before windows freed blocks mask what they read of these."""
    llm = open_model(device="numpy")
    engine = llm.engine
    engine.add_request("r", prompts()[0], SamplingParams(max_tokens=2, ignore_eos=True))
    while not engine.running or not engine.running[0].output_token_ids:
        engine.step()
    assert num_freed(llm, "r") > 0
    tables = engine.runner.executor.host_inputs
    for group in range(1, engine.cache.num_groups):
        table = engine.cache.block_table("r", group)
        assert set(tables[f"block_tables.{group}"][: len(table)]) == set(table) - {FREED}


def test_positions_in_the_middle_cannot_be_dropped(open_model: Open) -> None:
    llm = open_model()
    cache = llm.engine.cache
    llm.engine.add_request("r", prompts()[0], SamplingParams(max_tokens=2, ignore_eos=True))
    while not llm.engine.running or not llm.engine.running[0].output_token_ids:
        llm.engine.step()
    assert cache.remove("r", 16, 32) is CacheOutcome.WINDOWS_FREED
    assert cache.keep("r", 16) is CacheOutcome.WINDOWS_FREED
    assert cache.shift("r", 16, 5) is CacheOutcome.WINDOWS_FREED
    assert cache.truncate("r", 16) is CacheOutcome.BEHIND_WINDOW
    assert "sliding windows free blocks" in CacheOutcome.WINDOWS_FREED.value


def test_a_pool_without_a_block_for_each_group_is_refused(open_model: Open) -> None:
    with pytest.raises(InvalidArgumentError, match="are 4 groups"):
        open_model(num_kv_blocks=3)


@pytest.mark.parametrize(
    "options", [{"max_model_len": 200}, {"kv_store": "disk:{path}"}], ids=["short contexts", "a KV store"]
)
def test_windows_are_masks_where_groups_would_not_help(
    open_model: Open, tmp_path: Path, options: dict[str, Any]
) -> None:
    given = {
        name: value.format(path=tmp_path / "kv") if name == "kv_store" else value for name, value in options.items()
    }
    assert len(open_model(**given).engine.compiled.cache_spec.groups) == 1
