"""A model on two ranks, each a process: the answers of one, and an end for all when one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters import PROJECTIONS, linear_shapes, write_adapter
from tests.end_to_end.models import copy_demo
from tests.processes import await_end

from aethermind import LLM, Runtime, SamplingParams
from aethermind.engine.executors.multiproc import MultiprocExecutor
from aethermind.engine.kv_memory.memory import MemoryContents
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.model_graph import GraphKey
from aethermind.errors import ConfigError, EngineDeadError, InvalidArgumentError
from aethermind.testing.families import SMALL, ModelCase
from aethermind.testing.families.transformers_reference import TransformersReference

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a time", "The little fox", "Tom had a red ball. One day"]


def open_demo(runtime: Runtime, size: int, **options: Any) -> LLM:
    given = {"device": "cpu", "dtype": "float32", "max_model_len": 128, "num_threads": 1, "runtime": runtime}
    return LLM(tensor_parallel_size=size, **{**given, **options})


def pids(llm: LLM) -> list[int]:
    executor = llm.engine.executor
    assert isinstance(executor, MultiprocExecutor)
    return executor.pids


@pytest.fixture(scope="module")
def alone(runtime: Runtime) -> Iterator[LLM]:
    with open_demo(runtime, 1) as llm:
        yield llm


@pytest.fixture(scope="module")
def two(runtime: Runtime) -> Iterator[LLM]:
    with open_demo(runtime, 2) as llm:
        yield llm


def answers(llm: LLM, params: SamplingParams) -> list[list[list[int]]]:
    return [[one.token_ids for one in output.outputs] for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=0.8, seed=5, n=2, max_tokens=12),
        SamplingParams(temperature=0.0, max_tokens=6, repetition_penalty=1.3, bad_words=["lived"]),
        SamplingParams(temperature=0.0, max_tokens=3, allowed_token_ids=[11, 13, 17]),
    ],
    ids=["greedy", "two-answers", "adjusted", "masked"],
)
def test_answers_are_those_of_one_rank(alone: LLM, two: LLM, params: SamplingParams) -> None:
    assert answers(two, params) == answers(alone, params)


def test_prompt_logprobs_and_embeddings_are_those_of_one_rank(alone: LLM, two: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1, logprobs=2)
    found, expected = (llm.generate(PROMPTS[2], params)[0] for llm in (two, alone))
    assert found.prompt_logprobs is not None
    assert expected.prompt_logprobs is not None
    for ours, theirs in zip(found.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
        assert [one.logprob for one in ours.values()] == pytest.approx(
            [one.logprob for one in theirs.values()], abs=1e-4
        )
    np.testing.assert_allclose(two.embed(PROMPTS)[0], alone.embed(PROMPTS)[0], atol=1e-4)


TARGETS = {
    "all": PROJECTIONS,
    "attention": ("q_proj", "v_proj"),
    "outputs": ("o_proj", "down_proj"),
    "gate": ("gate_proj",),
}


@pytest.mark.parametrize("size", [2, 4])
def test_adapters_answer_as_on_one_rank(runtime: Runtime, tmp_path: Path, size: int) -> None:
    """Each of the ways in which a product that is cut can be adapted; by four ranks heads of keys are shared."""
    config = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "vocab_size": 4096, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": 2}
    TransformersReference().write(ModelCase("adapted", "Qwen2ForCausalLM", config), tmp_path / "model")
    paths = {
        name: str(write_adapter(tmp_path / name, linear_shapes(config), seed=seed, size=0.5, rank=3, targets=targets))
        for seed, (name, targets) in enumerate(TARGETS.items())
    }
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3)
    names = [None, *paths]
    prompts: Any = [{"prompt_token_ids": [5 + i, 60, 7, 300 + i]} for i in range(len(names))]

    def found(size: int) -> tuple[list[list[int]], list[float], Any]:
        options: dict[str, Any] = {"model": str(tmp_path / "model"), "adapters": paths, "tokenizer": "demo"}
        with open_demo(runtime, size, **options) as llm:
            outputs = [one.outputs[0] for one in llm.generate(prompts, params, adapter=names)]
            logprobs = [one.logprob for output in outputs for step in output.logprobs or () for one in step.values()]
            return [one.token_ids for one in outputs], logprobs, llm.embed(prompts[0], adapter="outputs")[0]

    tokens, logprobs, vector = found(1)
    own_tokens, own_logprobs, own_vector = found(size)
    assert own_tokens == tokens
    assert own_logprobs == pytest.approx(logprobs, abs=1e-4)
    np.testing.assert_allclose(own_vector, vector, atol=1e-4)
    assert len({tuple(one) for one in tokens}) > 1, "adapters change answers"


def test_adapters_are_sharded_like_the_weights_and_need_no_collective_of_their_own(
    runtime: Runtime, tmp_path: Path
) -> None:
    TransformersReference().write(ModelCase("adapted", "Qwen3ForCausalLM", {**SMALL, "head_dim": 16}), tmp_path / "m")
    shapes = linear_shapes({**SMALL, "head_dim": 16})
    adapters = {"a": write_adapter(tmp_path / "a", shapes, rank=3)}
    options: dict[str, Any] = {"device": "cpu", "adapters": adapters, "tensor_parallel_size": 2}
    compiled = compile_model(runtime, tmp_path / "m", rank=1, **options)
    adapted = compiled.compile(GraphKey(has_adapters=True)).graph
    meetings = [[node.operator for node in graph.nodes].count("all_reduce") for graph in (compiled.step.graph, adapted)]
    assert meetings == [4, 4]
    layer = "model.layers.1."
    found = {one.name.removeprefix(layer): one.type.shape for one in adapted.parameters if one.name.startswith(layer)}
    for module, up in (("self_attn.q_proj", 32), ("self_attn.v_proj", 16), ("mlp.gate_proj", 24)):
        assert found[f"{module}.weight/up/columns"] == (3, up)
        assert found[f"{module}.weight/down"] == (3, 32)
    for module, down in (("self_attn.o_proj", 32), ("mlp.down_proj", 24)):
        assert found[f"{module}.weight/down/columns"] == (3, down)
        assert found[f"{module}.weight/up"] == (3, 32)


def test_each_rank_has_half_of_the_weights_and_of_the_cache(alone: LLM, two: LLM) -> None:
    # One rank looks rows up in the head's weight; several have a part of the table beside a part of the head.
    config = alone.engine.compiled.model.config
    table_bytes = 4 * config.vocab_size * config.hidden_size
    assert two.info.weight_bytes < 0.51 * (alone.info.weight_bytes + table_bytes)
    assert two.info.kv_cache_bytes == alone.info.kv_cache_bytes // 2
    assert "rank 0 of 2" in two.info.placement


def test_a_hook_that_raises_breaks_nothing(two: LLM) -> None:
    expected = answers(two, GREEDY)

    def fail(*_: Any) -> None:
        raise ValueError("as it is meant to")

    with two.hooks.on("*", fail), pytest.raises(ValueError, match="as it is meant to"):
        two.generate(PROMPTS[0], GREEDY)
    for request in list(two.engine.running):
        two.engine.abort(request.request_id)
    assert answers(two, GREEDY) == expected


def test_preempted_requests_resume_and_closing_ends_the_ranks(runtime: Runtime, alone: LLM) -> None:
    with open_demo(runtime, 2, num_kv_blocks=14, block_size=4, swap_space=0.01) as llm:
        llm.engine.costs.seconds_per_token = 1e6
        (pid,) = pids(llm)
        long = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
        assert answers(llm, long) == answers(alone, long)
        assert llm.engine.num_preemptions > 0
        assert llm.engine.swap_store is not None
        assert llm.engine.swap_store.num_moved_in > 0
    await_end(pid)


def falcon(folder: Path) -> Path:
    """A hybrid with two heads of states for each of two groups, without weights."""
    sizes = {"mamba_n_heads": 4, "mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 16}
    return copy_demo(folder / "falcon", {"architectures": ["FalconH1ForCausalLM"], **sizes})


def test_ranks_swap_and_fork_their_parts_of_recurrent_states(runtime: Runtime, tmp_path: Path) -> None:
    """Answers of one rank without pressure: states are forked, snapshotted, swapped out and back on both ranks."""
    path = falcon(tmp_path)
    options = {"load_format": "dummy", "block_size": 4, "max_num_batched_tokens": 32}
    found = []
    for size, more in ((1, {}), (2, {"num_kv_blocks": 14, "swap_space": 0.01})):
        with open_demo(runtime, size, model=str(path), **options, **more) as llm:
            llm.engine.costs.seconds_per_byte, llm.engine.costs.seconds_per_token = 0.0, 1e6
            several = answers(llm, SamplingParams(n=2, temperature=0.0, max_tokens=12, ignore_eos=True))
            found.append((several, answers(llm, GREEDY), answers(llm, GREEDY)))
            if size == 2:
                assert llm.engine.swap_store is not None
                assert llm.engine.swap_store.num_moved_in > 0
    assert found[1] == found[0]


@pytest.mark.parametrize(("of_writer", "of_reader"), [(1, 2), (2, 1)])
def test_stored_states_are_those_of_all_ranks(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_writer: int, of_reader: int
) -> None:
    """A KV store that engines of other numbers of ranks continue from, and the same values in it."""
    monkeypatch.setattr("aethermind.engine.kv_offload.offload.FetchCosts.is_worth_fetching", lambda *_: True)
    path, prompt = falcon(tmp_path), [7, 9, 8, 30] * 8
    options = {"model": str(path), "load_format": "dummy", "block_size": 4, "max_num_batched_tokens": 32}
    with open_demo(runtime, 1, **options) as llm:
        expected = llm.generate({"prompt_token_ids": [*prompt, 5]}, GREEDY)[0].outputs[0].token_ids
    states = []
    for size in (of_writer, of_reader):
        with open_demo(runtime, size, kv_store=f"disk:{tmp_path / 'kv'}", **options) as llm:
            (output,) = llm.generate({"prompt_token_ids": [*prompt, 5][: 32 + len(states)]}, GREEDY)
            assert llm.engine.kv_offload is not None
            assert llm.engine.kv_offload.flush(60)
            cache = llm.engine.cache
            assert cache.open("look", [*prompt, 5]).num_cached_tokens == 32
            contents = MemoryContents(llm.engine.runner.kv_memory, "any")
            read = contents.read_states(cache.state_slot("look"), cache.state_copies)
            states.append({name: np.frombuffer(each.data, np.float32) for name, each in read.items()})
            cache.release("look")
    assert (output.num_cached_tokens, output.outputs[0].token_ids) == (32, expected)
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    with open_demo(runtime, of_reader, **options) as llm:
        llm.generate({"prompt_token_ids": prompt}, GREEDY)
        assert llm.engine.cache.open("look", [*prompt, 5]).num_cached_tokens == 32
        contents = MemoryContents(llm.engine.runner.kv_memory, "any")
        read = contents.read_states(llm.engine.cache.state_slot("look"), llm.engine.cache.state_copies)
        for name, each in read.items():
            np.testing.assert_allclose(np.frombuffer(each.data, np.float32), states[0][name], rtol=1e-3, atol=1e-5)
        llm.engine.cache.release("look")


def test_a_rank_that_is_killed_is_named_and_ends_all(runtime: Runtime) -> None:
    llm = open_demo(runtime, 2)
    (pid,) = pids(llm)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match=r"Rank 1 of 2 was killed by SIGKILL\."):
            llm.generate(PROMPTS[0], GREEDY)
    llm.close()


def test_a_rank_that_fails_says_why(runtime: Runtime) -> None:
    llm = open_demo(runtime, 2)
    (pid,) = pids(llm)
    executor: Any = llm.engine.executor
    executor._workers.broadcast("copy_blocks", "nonsense")
    with pytest.raises(EngineDeadError, match="Rank 1 of 2 failed: "):
        llm.generate(PROMPTS[0], GREEDY)
    await_end(pid)
    llm.close()


_PROGRAM = """
import sys
from aethermind import LLM, SamplingParams
sys.excepthook = lambda kind, *_: print(kind.__name__, file=sys.stderr)
llm = LLM("demo", device="cpu", num_threads=1, tensor_parallel_size=2)
print(*llm.engine.executor.pids, flush=True)
llm.generate("Once", SamplingParams(max_tokens=2000, ignore_eos=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_ranks_end_with_their_parent(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if number is signal.SIGINT:  # as a terminal sends it: to all of them
            os.killpg(process.pid, number)
        else:
            process.kill()
        _, said = process.communicate(timeout=120)
    await_end(pid)
    assert process.returncode == -number
    assert said == (b"KeyboardInterrupt\n" if number is signal.SIGINT else b"")  # of rank 0 alone


def test_the_command_line_has_its_short_name(alone: LLM) -> None:
    command = [sys.executable, "-m", "aethermind", "generate", PROMPTS[0], "--temperature", "0", "--max-tokens", "8"]
    said = subprocess.run([*command, "--dtype", "float32", "-tp", "2"], capture_output=True, text=True, check=True)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    assert said.stdout.strip() == alone.generate(PROMPTS[0], params)[0].outputs[0].text.strip()


def test_an_impossible_number_of_ranks_is_an_error_of_one_sentence(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match="num_kv_heads is 2, which 3 ranks cannot share evenly"):
        open_demo(runtime, 3)
    with pytest.raises(InvalidArgumentError, match="The executor inline runs one rank"):
        open_demo(runtime, 2, executor="inline")
    with pytest.raises(InvalidArgumentError, match="multiproc is for tensor_parallel_size 2 or more"):
        open_demo(runtime, 1, executor="multiproc")
