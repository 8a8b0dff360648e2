"""Requests with adapters: whatever is asked, the answer is that of a model with the adapter in its weights, alone and
in any company.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tests.adapters import adapt_weights, linear_shapes, write_adapter
from tests.core.engine.speculative.drafting import Scripted, speculate_with
from tests.scale import scaled

from aethermind import LLM, Runtime, SamplingParams
from aethermind.checkpoint import Checkpoint
from aethermind.engine.engine import Engine
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.observation.engine_stats import EngineStats
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.request import Request, RequestOptions
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.sampling.params import StructuredOutputs

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = "The fox and the hen went to the river, and the fox said to the hen"
LIMITS: dict[str, Any] = {"dtype": "float32", "max_model_len": 64}


@pytest.fixture(scope="module")
def demo(runtime: Runtime) -> Path:
    return runtime.models.locate("demo")


@pytest.fixture(scope="module")
def adapters(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One that changes every projection, and one of another rank that changes some."""
    shapes = linear_shapes(json.loads((demo / "config.json").read_text()))
    root = tmp_path_factory.mktemp("adapters")
    return {
        "wide": write_adapter(root / "wide", shapes, seed=1, size=0.3),
        "thin": write_adapter(root / "thin", shapes, seed=2, size=0.4, rank=2, targets=("v_proj", "down_proj")),
    }


@pytest.fixture(scope="module")
def merged(demo: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with the wide adapter in its weights."""
    directory = tmp_path_factory.mktemp("merged")
    for file in demo.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, directory)
    checkpoint = Checkpoint.open(demo)
    weights = {name: checkpoint.array(name).astype(np.float32) for name in checkpoint.names}
    save_file(adapt_weights(weights, adapters["wide"]), directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def llm(device: str, adapters: dict[str, Path]) -> Iterator[LLM]:
    with LLM("demo", device=device, adapters=adapters, **LIMITS) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(device: str, merged: Path) -> Iterator[LLM]:
    with LLM(merged, device=device, **LIMITS) as llm:
        yield llm


def tokens_of(outputs: Sequence[Any]) -> list[list[int]]:
    return [one.token_ids for output in outputs for one in output.outputs]


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=3, max_tokens=8, top_k=20),
        SamplingParams(temperature=0.9, seed=4, max_tokens=6, n=3),
        SamplingParams(temperature=0.0, max_tokens=8, repetition_penalty=1.3, bad_words=["fox"]),
        SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputs(choice=["a hen", "a dog"])),
    ],
    ids=["greedy", "sampled", "several", "adjusted", "structured"],
)
def test_answers_are_those_of_the_model_with_changed_weights(llm: LLM, model: LLM, params: SamplingParams) -> None:
    wanted = tokens_of(model.generate(PROMPT, params))
    assert tokens_of(llm.generate(PROMPT, params, adapter="wide")) == wanted
    if params is GREEDY:
        assert tokens_of(llm.generate(PROMPT, params)) != wanted


def test_log_probabilities_of_prompt_and_answer(llm: LLM, model: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (found,), (wanted,) = llm.generate(PROMPT, params, adapter="wide"), model.generate(PROMPT, params)
    for ours, theirs in (
        (found.prompt_logprobs or [], wanted.prompt_logprobs or []),
        (found.outputs[0].logprobs or [], wanted.outputs[0].logprobs or []),
    ):
        assert len(ours) == len(theirs) > 0
        for left, right in zip(ours, theirs, strict=True):
            if left is None or right is None:
                assert left is right
                continue
            assert {token: round(one.logprob, 3) for token, one in left.items()} == pytest.approx(
                {token: round(one.logprob, 3) for token, one in right.items()}, abs=3e-3
            )
    again = llm.generate(PROMPT, params, adapter="wide")[0]
    assert again.num_cached_tokens > 0  # what the scores computed


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors(llm: LLM, model: LLM, pooling: str) -> None:
    (found,) = llm.embed(PROMPT, pooling=pooling, adapter="wide")
    (wanted,), (plain,) = (one.embed(PROMPT, pooling=pooling) for one in (model, llm))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert np.abs(found - plain).max() > 1e-2


def test_prompts_of_embeddings(llm: LLM, model: LLM) -> None:
    width = llm.engine.compiled.model.config.hidden_size
    prompt = {"prompt_embeds": np.random.default_rng(0).standard_normal((5, width)).astype(np.float32)}
    assert tokens_of(llm.generate(prompt, GREEDY, adapter="wide")) == tokens_of(model.generate(prompt, GREEDY))


def test_conversations_and_streams(llm: LLM, model: LLM) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    wanted = tokens_of(model.chat(messages, GREEDY))
    assert tokens_of(llm.chat(messages, GREEDY, adapter="wide")) == wanted
    assert tokens_of([*llm.stream_chat(messages, GREEDY, adapter="wide")][-1:]) == wanted
    assert tokens_of([*llm.stream(PROMPT, GREEDY, adapter="wide")][-1:]) == tokens_of(model.generate(PROMPT, GREEDY))


def test_prompts_of_one_batch_choose_for_themselves(llm: LLM) -> None:
    alone = [tokens_of(llm.generate(PROMPT, GREEDY, adapter=name))[0] for name in ("wide", None, "thin")]
    assert len({tuple(tokens) for tokens in alone}) == 3
    assert tokens_of(llm.generate([PROMPT] * 3, GREEDY, adapter=["wide", None, "thin"])) == alone
    options = [RequestOptions(adapter="wide"), RequestOptions(), RequestOptions(adapter="thin")]
    assert tokens_of(llm.generate([PROMPT] * 3, GREEDY, options=options)) == alone


def test_drafts_are_checked_with_the_adapter(device: str, adapters: dict[str, Path], llm: LLM) -> None:
    prompts, names = [PROMPT, "Once upon a time", PROMPT], ["wide", "thin", None]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    wanted = tokens_of(llm.generate(prompts, params, adapter=names))

    def draft(request: Request, most: int) -> list[int]:
        """What comes next, but for one token in three."""
        start = request.num_output_tokens
        tokens = wanted[int(request.request_id)][start : start + most]
        return [token if (start + place) % 3 else 7 for place, token in enumerate(tokens)]

    with LLM("demo", device=device, adapters=adapters, speculative_method="prompt_lookup", **LIMITS) as drafting:
        speculate_with(drafting.engine, Scripted(draft))
        outputs = drafting.generate(prompts, params, adapter=names)
    assert tokens_of(outputs) == wanted
    assert all(one.metrics.num_draft_tokens > one.metrics.num_accepted_tokens > 0 for one in outputs)


def test_keys_and_values_are_shared_within_an_adapter_only(device: str, adapters: dict[str, Path]) -> None:
    with LLM("demo", device=device, adapters=adapters, block_size=4, **LIMITS) as llm:

        def num_cached(adapter: str | None) -> int:
            return llm.generate(PROMPT, GREEDY, adapter=adapter)[0].num_cached_tokens

        assert [num_cached(name) for name in (None, "wide", "thin")] == [0, 0, 0]
        known = [num_cached(name) for name in ("thin", None, "wide")]
        assert min(known) > 0
        assert len(set(known)) == 1


def test_a_store_is_shared_by_what_adapters_hold(device: str, adapters: dict[str, Path], tmp_path: Path) -> None:
    options = {"kv_store": f"disk:{tmp_path / 'kv'}", "block_size": 4, **LIMITS}
    with LLM("demo", device=device, adapters={"one": adapters["wide"]}, **options) as first:
        wanted = tokens_of(first.generate(PROMPT, GREEDY, adapter="one"))
    renamed = {"other": adapters["thin"], "same": adapters["wide"]}
    with LLM("demo", device=device, adapters=renamed, **options) as second:
        assert tokens_of(second.generate(PROMPT, GREEDY, adapter="other")) != wanted
        second.generate(PROMPT, GREEDY)
        store = EngineStats.of(second.engine).kv_store
        assert store is not None
        assert store.num_hits == 0
        assert tokens_of(second.generate(PROMPT, GREEDY, adapter="same")) == wanted
        store = EngineStats.of(second.engine).kv_store
        assert store is not None
        assert store.num_hits > 0


def test_steps_without_adapters_run_the_graph_without(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = [one for one in llm.engine.runner.executors if "adapters" in one.plan.inputs]
    assert adapted
    for executor in adapted:
        monkeypatch.setattr(executor, "run", None)
    assert "adapters" not in llm.engine.runner.executor.plan.inputs
    assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    with pytest.raises(TypeError):
        llm.generate(PROMPT, GREEDY, adapter="wide")
    while llm.engine.has_unfinished:
        llm.engine.abort(next(iter(llm.engine._outputs)))


def test_weights_may_be_quantised(device: str, demo: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    shapes = linear_shapes(json.loads((demo / "config.json").read_text()))
    nothing = write_adapter(tmp_path, shapes, size=0.0)
    with LLM("demo", device=device, quantization="int8", adapters={**adapters, "nothing": nothing}, **LIMITS) as llm:
        plain, same, other = (
            tokens_of(llm.generate(PROMPT, GREEDY, adapter=name)) for name in (None, "nothing", "wide")
        )
    assert same == plain
    assert other != plain


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_are_supported(device: str, merged: Path, adapters: dict[str, Path], dtype: str) -> None:
    with LLM("demo", device=device, dtype=dtype, max_model_len=64, adapters=adapters) as llm:
        (found,) = llm.embed(PROMPT, adapter="wide")
    with LLM(merged, device=device, dtype="float32", max_model_len=64) as model:
        (wanted,) = model.embed(PROMPT)
    assert float(found @ wanted) > 0.995


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 14), st.sampled_from(["", "wide", "thin"]), st.integers(1, 8), st.booleans()
    ),
    min_size=2,
    max_size=7,
)


@pytest.fixture(scope="module")
def pressed(device: str, runtime: Runtime, adapters: dict[str, Path]) -> Iterator[tuple[Engine, Engine]]:
    """An engine with blocks for little more than one request at a time, and one with blocks for all."""
    engines = [
        open_adapted(runtime, device, adapters, block_size=4, max_num_batched_tokens=6, num_kv_blocks=num_blocks)
        for num_blocks in (9, 200)
    ]
    yield engines[0], engines[1]
    for engine in engines:
        engine.close()


def open_adapted(runtime: Runtime, device: str, adapters: dict[str, Path], **options: Any) -> Engine:
    limits = {"dtype": "float32", "max_model_len": 32, "adapters": adapters, "swap_space": 0.001}
    parts = EngineParts.of(runtime, "demo", device=device, **limits, **options)
    return Engine(parts, parts.compiled.source.tokenizer())


def answers(engine: Engine, requests: Sequence[tuple[int, int, str, int, bool]]) -> list[list[int]]:
    """What each gets: a prompt of some length that begins like others of its kind, greedy or by its own seed."""
    for index, (kind, length, adapter, count, is_greedy) in enumerate(requests):
        prompt = [(7 * kind + 11 * position) % 900 + 5 for position in range(length)]
        params = SamplingParams(temperature=0.0 if is_greedy else 1.0, seed=kind, max_tokens=count, ignore_eos=True)
        engine.add_request(str(index), prompt, params, options=RequestOptions(adapter=adapter))
    finished: dict[str, list[int]] = {}
    while engine.has_unfinished:
        finished.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
    return [finished[str(index)] for index in range(len(requests))]


@given(requests=REQUESTS)
@settings(max_examples=scaled(2500))
def test_a_mixed_batch_under_pressure_gives_each_what_it_gets_alone(
    pressed: tuple[Engine, Engine], requests: list[tuple[int, int, str, int, bool]]
) -> None:
    small, roomy = pressed
    assert answers(small, requests) == [answers(roomy, [one])[0] for one in requests]


def test_that_load_is_pressure(pressed: tuple[Engine, Engine]) -> None:
    before = pressed[0].num_preemptions
    answers(pressed[0], [(0, 14, name, 8, True) for name in ("wide", "thin", "", "wide")])
    assert pressed[0].num_preemptions > before


def test_unknown_adapters_are_refused(llm: LLM, model: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match="There is no adapter 'sql'; there are wide, thin"):
        llm.generate(PROMPT, GREEDY, adapter="sql")
    with pytest.raises(InvalidArgumentError, match="There is no adapter 'sql'; there are wide, thin"):
        llm.embed(PROMPT, adapter="sql")
    with pytest.raises(InvalidArgumentError, match="the model was loaded without any"):
        model.generate(PROMPT, GREEDY, adapter="sql")
    with pytest.raises(InvalidArgumentError, match="adapter should be a name, or a name or None for each of 2 prompts"):
        llm.generate([PROMPT] * 2, GREEDY, adapter=["wide"])
    with pytest.raises(InvalidArgumentError, match="adapter should be a text, got 3"):
        llm.generate(PROMPT, GREEDY, adapter=[3])  # type: ignore[list-item]


def test_options_that_exclude_adapters(adapters: dict[str, Path], runtime: Runtime, tmp_path: Path) -> None:
    config: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    config |= {"intermediate_size": 8, "max_position_embeddings": 16}
    for name, options, message in (
        ("BertModel", {}, "BertModel is an encoder, which takes no adapters"),
        ("Phi3ForCausalLM", {"load_format": "dummy"}, "Phi3ForCausalLM takes no adapters with dummy weights"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
        with pytest.raises(ConfigError, match=message):
            compile_model(runtime, tmp_path, device="numpy", adapters=adapters, **options)
