"""What requests may ask of their tokens, end to end: biases, forbidden and allowed tokens, several answers, scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.core.plugins.fake_distributions import FakeDistributions

from aethermind import LLM, RequestOutput, Runtime, SamplingParams
from aethermind.errors import AetherMindError, InvalidArgumentError

PROMPT = "Once upon a time"


def greedy(max_tokens: int = 10, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)


def tokens(output: RequestOutput, index: int = 0) -> list[int]:
    return output.outputs[index].token_ids


@pytest.fixture(scope="module")
def reference(runtime: Runtime) -> Any:
    """The demo model as transformers computes it, in float32."""
    path = Path(runtime.models.locate("demo"))
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def test_a_bias_forces_and_forbids(demo: LLM) -> None:
    (plain,) = demo.generate(PROMPT, greedy())
    (forced,) = demo.generate(PROMPT, greedy(logit_bias={300: 100}))
    assert tokens(forced) == [300] * 10
    (forbidden,) = demo.generate(PROMPT, greedy(logit_bias={tokens(plain)[0]: -100}))
    assert tokens(plain)[0] not in tokens(forbidden)


def test_penalties_apply_to_tokens_of_the_answer(demo: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, allowed_token_ids=range(300, 320))
    penalised = [
        SamplingParams(**{**as_arguments(params), name: 2.0}) for name in ("frequency_penalty", "presence_penalty")
    ]
    plain, *others = demo.generate([PROMPT] * 3, [params, *penalised])
    assert all(len(set(tokens(other))) > len(set(tokens(plain))) for other in others)


def as_arguments(params: SamplingParams) -> dict[str, Any]:
    names = ("temperature", "max_tokens", "ignore_eos", "allowed_token_ids")
    return {name: getattr(params, name) for name in names}


def test_only_allowed_tokens_come(demo: LLM) -> None:
    allowed = [7, 300, 301, 2047]
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=30, allowed_token_ids=allowed)
    (output,) = demo.generate(PROMPT, params)
    assert set(tokens(output)) <= set(allowed)
    assert len(set(tokens(output))) > 1


def test_bad_words_never_come(demo: LLM) -> None:
    (plain,) = demo.generate(PROMPT, greedy(12))
    text = plain.outputs[0].text
    words = [word for word in text.replace(",", " ").split() if len(word) > 2][:2]
    (without,) = demo.generate(PROMPT, greedy(12, bad_words=words))
    assert not any(f" {word}" in without.outputs[0].text for word in words)
    assert without.outputs[0].text != text
    ids = demo.tokenizer.encode(" " + words[0])
    (one,) = demo.generate(PROMPT, greedy(12, bad_words=[" ".join([words[0], "zebra"])]))
    assert tokens(one) == tokens(plain), "the beginning of a bad word is none"
    assert ids


def test_parallel_samples_share_the_prompt(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(block_size=4, num_kv_blocks=40, enable_prefix_caching=False, max_num_seqs=4)
    num_prompt_blocks = 6
    prompt = {"prompt_token_ids": list(range(100, 100 + 4 * num_prompt_blocks - 1))}
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=9, ignore_eos=True)
    least = llm.engine.compiled.num_kv_blocks
    outputs = []
    for output in llm.stream(prompt, params):
        least = min(least, llm.engine.cache.num_free_blocks)
        outputs.append(output)
    output = outputs[-1]
    assert [one.index for one in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in output.outputs}) == 4
    assert all(len(one.token_ids) == 9 for one in output.outputs)
    used = llm.engine.compiled.num_kv_blocks - least
    assert num_prompt_blocks < used <= num_prompt_blocks - 1 + 4 * 4
    assert llm.engine.cache.num_free_blocks == llm.engine.compiled.num_kv_blocks


@pytest.mark.parametrize("num_kv_blocks", [12, 40])
def test_parallel_samples_are_the_same_under_preemption(open_demo: Callable[..., LLM], num_kv_blocks: int) -> None:
    params = SamplingParams(n=5, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=1)
    options = {"deterministic": True, "block_size": 4, "max_model_len": 40}
    crowded = open_demo(num_kv_blocks=num_kv_blocks, max_num_seqs=2, **options)
    free = open_demo(num_kv_blocks=100, **options)
    found, expected = (llm.generate([PROMPT, "The fox"], [params, greedy(8)]) for llm in (crowded, free))
    assert [one.outputs for one in found] == [one.outputs for one in expected]


def test_aborting_several_answers_frees_everything(demo: LLM) -> None:
    params = SamplingParams(n=6, max_tokens=20, ignore_eos=True)
    for num_steps in range(4):
        demo.engine.add_request("several", [5, 6, 7], params)
        for _ in range(num_steps):
            demo.engine.step()
        output = demo.engine.abort("several")
        assert output is not None
        assert output.finished
        assert [one.finish_reason for one in output.outputs] == ["abort"] * 6
        assert not demo.engine.has_unfinished
        demo.engine.add_request("several", [5, 6, 7], params)
        demo.engine.abort("several")


def test_prompt_logprobs_are_those_of_transformers(demo: LLM, reference: Any) -> None:
    params = greedy(2, prompt_logprobs=3)
    text = "Once upon a time there was a fox. " * 4
    (output,) = demo.generate(text, params)
    ids = output.prompt_token_ids
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(ids)
    assert output.prompt_logprobs[0] is None
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1).numpy()
    for position, entries in enumerate(output.prompt_logprobs[1:]):
        assert entries is not None
        assert ids[position + 1] in entries
        assert len(entries) in (3, 4)
        for token_id, entry in entries.items():
            assert entry.logprob == pytest.approx(expected[position, token_id], abs=2e-4)
            assert entry.decoded_token == demo.tokenizer.token_text(token_id)
    (plain,) = demo.generate(text, greedy(2))
    assert (plain.prompt_logprobs, tokens(plain)) == (None, tokens(output))


def test_prompt_logprobs_wait_for_free_blocks(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(num_kv_blocks=10, block_size=4, max_model_len=40, max_num_seqs=3)
    prompt = {"prompt_token_ids": list(range(50, 70))}
    results = llm.generate([prompt] * 3, [greedy(10), greedy(10, prompt_logprobs=0), greedy(3, n=2, prompt_logprobs=1)])
    assert [result.prompt_logprobs is not None for result in results] == [False, True, True]
    assert tokens(results[0]) == tokens(results[1])


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_embeddings_are_those_of_transformers(demo: LLM, reference: Any, pooling: str) -> None:
    texts = ["A fox", "Once upon a time there was a small dog who lived by the sea. " * 3]
    vectors = demo.embed(texts, pooling=pooling)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            states = reference.model(torch.tensor([demo.tokenizer.encode(text)])).last_hidden_state[0].double()
        pooled = {"last": states[-1], "mean": states.mean(0), "cls": states[0]}[pooling].numpy()
        np.testing.assert_allclose(vector, pooled / np.linalg.norm(pooled), atol=2e-5)
        (raw,) = demo.embed(text, pooling=pooling, normalize=False)
        np.testing.assert_allclose(raw, pooled, rtol=2e-3, atol=2e-4)


def test_bad_embedding_requests_are_refused(demo: LLM) -> None:
    with pytest.raises(InvalidArgumentError, match="pooling should be one of last, mean, cls"):
        demo.embed("A fox", pooling="max")
    with pytest.raises(InvalidArgumentError, match="holds 128"):
        demo.embed({"prompt_token_ids": [1] * 129})
    with pytest.raises(InvalidArgumentError, match="takes texts and token ids"):
        demo.embed({"prompt_embeds": [[0.0] * 256]})


PROCESSORS = """
@hookimpl
def register_logits_processors(registry):
    registry.register("only", __name__ + ":only", provider="fake-only")
    registry.register("broken", __name__ + ":broken", provider="fake-only")


def only(params, tokenizer):
    token_ids = [tokenizer.encode(word)[0] for word in params.extra_args["words"]]

    def processor(prompt_token_ids, output_token_ids, logits):
        wanted = token_ids[len(output_token_ids) % len(token_ids)]
        logit = logits[wanted]
        logits[:] = -float("inf")
        logits[wanted] = logit

    return processor


def broken(params, tokenizer):
    def processor(prompt_token_ids, output_token_ids, logits):
        raise LookupError("no luck")

    return processor
"""


@pytest.fixture
def with_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> LLM:
    FakeDistributions(tmp_path, monkeypatch).install("only", PROCESSORS)
    return LLM("demo", device=device, dtype="float32", max_model_len=64, runtime=Runtime.boot())


def test_logits_processors_of_plugins_apply_to_requests_that_name_them(with_processors: LLM) -> None:
    llm = with_processors
    words = ["fox", "dog"]
    params = greedy(4, logits_processors=["only"], extra_args={"words": words})
    plain, processed, mixed = llm.generate([PROMPT] * 3, [greedy(4), params, greedy(4, logprobs=1)])
    ids = [llm.tokenizer.encode(word)[0] for word in words]
    assert tokens(processed) == ids * 2
    (alone,) = llm.generate(PROMPT, greedy(4))
    assert tokens(plain) == tokens(alone) == tokens(mixed)


def test_a_plugin_that_fails_ends_its_own_request(with_processors: LLM) -> None:
    llm = with_processors
    with pytest.raises(AetherMindError, match="logits processor broken failed with LookupError: no luck"):
        llm.generate([PROMPT] * 2, [greedy(4), greedy(4, logits_processors=["broken"])])
    with pytest.raises(InvalidArgumentError, match=r"Unknown logits processor 'other'\. Installed: broken, only"):
        llm.generate(PROMPT, greedy(4, logits_processors=["other"]))
    assert len(tokens(llm.generate(PROMPT, greedy(4))[0])) == 4


@pytest.mark.parametrize("params", [greedy(1, allowed_token_ids=[2048]), greedy(1, logit_bias={5000: 1})], ids=str)
def test_ids_beyond_the_vocabulary_are_refused(demo: LLM, params: SamplingParams) -> None:
    with pytest.raises(InvalidArgumentError, match="out of range: the vocabulary has 2048 entries"):
        demo.generate(PROMPT, params)
