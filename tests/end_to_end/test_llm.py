"""The offline API from prompts to results: order, parameters, endings, log probabilities, streams."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.end_to_end.models import CONFIG, DEMO, copy_demo

from aethermind import LLM, Logprob, RequestOutput, SamplingParams
from aethermind.errors import EngineDeadError
from aethermind.text.tokenizer import Tokenizer

PROMPTS = ("Once upon a time", "The old fox", "A", "One day, a little girl named Lily found a needle in her room.")


def greedy(max_tokens: int = 12, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def test_results_come_in_the_order_of_the_prompts(demo: LLM) -> None:
    params = [greedy(12), greedy(3), greedy(7), greedy(1)]
    results = demo.generate(PROMPTS, params)
    assert [result.prompt for result in results] == list(PROMPTS)
    assert [len(tokens(result)) for result in results] == [12, 3, 7, 1]
    for prompt, one, result in zip(PROMPTS, params, results, strict=True):
        (alone,) = demo.generate(prompt, one)
        assert tokens(alone) == tokens(result)
        assert result.prompt_token_ids == demo.tokenizer.encode(prompt)
        assert result.outputs[0].text == demo.tokenizer.decode(tokens(result))
        assert result.outputs[0].finish_reason == "length"
        assert result.finished
        assert result.outputs[0].logprobs is None


def test_prompts_as_text_and_as_token_ids(demo: LLM) -> None:
    ids = demo.tokenizer.encode(PROMPTS[0])
    by_text, by_ids = demo.generate([PROMPTS[0], {"prompt_token_ids": ids}], greedy())
    assert tokens(by_text) == tokens(by_ids)
    assert (by_ids.prompt, by_ids.prompt_token_ids) == (None, ids)
    (single,) = demo.generate({"prompt_token_ids": ids}, greedy())
    assert tokens(single) == tokens(by_text)
    assert demo.generate([]) == []


def test_the_same_call_gives_the_same_results(demo: LLM) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=8)
    first, second = (demo.generate(PROMPTS, params) for _ in range(2))
    assert [tokens(one) for one in first] == [tokens(one) for one in second]


def test_each_request_of_a_batch_has_its_own_parameters(demo: LLM) -> None:
    params = [
        greedy(10),
        SamplingParams(temperature=1.5, seed=1, max_tokens=10),
        SamplingParams(temperature=0.9, top_k=5, seed=2, max_tokens=10, logprobs=2),
        SamplingParams(temperature=1.0, top_p=0.7, min_p=0.05, seed=3, max_tokens=10),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=10, min_tokens=10),
        SamplingParams(temperature=1.2, repetition_penalty=1.2, seed=4, max_tokens=10),
    ]
    together = demo.generate([PROMPTS[0]] * len(params), params)
    alone = [demo.generate(PROMPTS[0], one)[0] for one in params]
    assert [tokens(one) for one in together] == [tokens(one) for one in alone]
    assert len({tuple(tokens(one)) for one in together}) >= 3


def test_a_seed_repeats_a_request_alone_and_in_any_batch(demo: LLM) -> None:
    def sampled(seed: int) -> SamplingParams:
        return SamplingParams(temperature=2.0, seed=seed, max_tokens=10)

    (alone,) = demo.generate(PROMPTS[0], sampled(7))
    batch = demo.generate([*PROMPTS[1:], PROMPTS[0], PROMPTS[0]], [*[greedy(5)] * 3, sampled(7), sampled(8)])
    assert tokens(batch[3]) == tokens(alone)
    assert tokens(batch[4]) != tokens(alone)


def test_requests_without_a_seed_get_different_seeds(open_demo: Callable[..., LLM]) -> None:
    params = SamplingParams(temperature=2.0, max_tokens=8)
    first, second, other = (open_demo(seed=seed).generate([PROMPTS[0]] * 2, params) for seed in (5, 5, 6))
    assert [tokens(one) for one in first] == [tokens(one) for one in second]
    assert len({tuple(tokens(one)) for one in (*first, *other)}) == 4


def test_logprobs(demo: LLM) -> None:
    favourites, none, sampled = demo.generate(
        [PROMPTS[0]] * 3,
        [
            greedy(4, logprobs=5),
            greedy(4, logprobs=0),
            SamplingParams(temperature=3.0, seed=11, max_tokens=8, logprobs=1),
        ],
    )
    assert favourites.outputs[0].logprobs is not None
    for token_id, entries in zip(tokens(favourites), favourites.outputs[0].logprobs, strict=True):
        assert next(iter(entries)) == token_id
        assert [entry.rank for entry in entries.values()] == [1, 2, 3, 4, 5]
        values = [entry.logprob for entry in entries.values()]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-5
        assert all(entry.decoded_token == demo.tokenizer.token_text(one) for one, entry in entries.items())
    assert none.outputs[0].logprobs is not None
    for token_id, entries in zip(tokens(none), none.outputs[0].logprobs, strict=True):
        assert list(entries) == [token_id]
    assert sampled.outputs[0].logprobs is not None
    surprises = 0
    for token_id, entries in zip(tokens(sampled), sampled.outputs[0].logprobs, strict=True):
        chosen = entries[token_id]
        assert isinstance(chosen, Logprob)
        assert len(entries) == (1 if chosen.rank == 1 else 2)
        assert chosen.logprob <= max(entry.logprob for entry in entries.values())
        surprises += chosen.rank > 1
    assert surprises > 0, "at temperature 3 some token should not be the favourite"


def test_logprobs_do_not_depend_on_temperature_and_penalty(demo: LLM) -> None:
    def first_entries(params: SamplingParams) -> dict[int, float]:
        (result,) = demo.generate(PROMPTS[0], params)
        assert result.outputs[0].logprobs is not None
        return {token_id: entry.logprob for token_id, entry in result.outputs[0].logprobs[0].items() if entry.rank <= 3}

    plain = first_entries(greedy(1, logprobs=3))
    bent = first_entries(SamplingParams(temperature=2.0, repetition_penalty=2.0, seed=1, max_tokens=1, logprobs=3))
    assert bent == pytest.approx(plain, abs=1e-5)


def test_a_stop_string_ends_the_text_before_it(demo: LLM) -> None:
    (whole,) = demo.generate(PROMPTS[0], greedy(20))
    text = whole.outputs[0].text
    stop = text[5:8]
    (stopped,) = demo.generate(PROMPTS[0], greedy(20, stop=["not in there", stop]))
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].stop_reason == stop
    assert tokens(stopped) == tokens(whole)[: len(tokens(stopped))]
    (unstopped,) = demo.generate(PROMPTS[0], greedy(20, stop="not in there"))
    assert unstopped.outputs[0].text == text


def test_a_stop_token_ends_the_request_and_adds_no_text(demo: LLM) -> None:
    (whole,) = demo.generate(PROMPTS[0], greedy(8))
    stop = tokens(whole)[3]
    end = tokens(whole).index(stop) + 1
    (stopped,) = demo.generate(PROMPTS[0], greedy(8, stop_token_ids=[stop]))
    assert tokens(stopped) == tokens(whole)[:end]
    assert stopped.outputs[0].text == demo.tokenizer.decode(tokens(whole)[: end - 1])
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)


def test_min_tokens_suppresses_stop_tokens_and_stop_strings(demo: LLM) -> None:
    (whole,) = demo.generate(PROMPTS[0], greedy(1))
    stop = tokens(whole)[0]
    (held,) = demo.generate(PROMPTS[0], greedy(12, min_tokens=6, stop_token_ids=[stop]))
    assert stop not in tokens(held)[:6]
    assert len(tokens(held)) >= 6
    (free,) = demo.generate(PROMPTS[0], greedy(12))
    (by_string,) = demo.generate(PROMPTS[0], greedy(12, min_tokens=6, stop=[whole.outputs[0].text]))
    assert len(tokens(by_string)) >= 6
    assert tokens(by_string) == tokens(free)[: len(tokens(by_string))]
    texts = [demo.tokenizer.token_text(token) for token in tokens(free)]
    across = texts[4][-1] + texts[5]  # complete with the sixth token
    (stopped,) = demo.generate(PROMPTS[0], greedy(12, min_tokens=6, stop=[across]))
    assert (tokens(stopped), stopped.outputs[0].stop_reason) == (tokens(free)[:6], across)


def test_the_most_stop_tokens_can_be_suppressed(demo: LLM) -> None:
    params = greedy(3, min_tokens=3, stop_token_ids=list(range(64)))
    for result in demo.generate([PROMPTS[0]] * 4, params):
        assert min(tokens(result)[:2]) >= 64


def test_end_of_text(open_demo: Callable[..., LLM], tmp_path: Path) -> None:
    llm = open_demo()
    (whole,) = llm.generate(PROMPTS[0], greedy(10))
    eos = tokens(whole)[4]
    end = tokens(whole).index(eos) + 1
    unknown = {"generation_config.json": b'{"eos_token_id": [100000]}'}
    llm = open_demo(model=copy_demo(tmp_path / "model", {"eos_token_id": eos}, unknown))
    ending, going_on, held = llm.generate(
        [PROMPTS[0]] * 3,
        [
            SamplingParams(temperature=0.0, max_tokens=10),
            greedy(10),
            SamplingParams(temperature=0.0, max_tokens=10, min_tokens=10),
        ],
    )
    assert tokens(ending) == tokens(whole)[:end]
    assert (ending.outputs[0].finish_reason, ending.outputs[0].stop_reason) == ("stop", None)
    assert tokens(going_on) == tokens(whole)
    assert eos not in tokens(held)
    assert len(tokens(held)) == 10


def test_a_negative_eos_token_id_is_an_error(
    open_demo: Callable[..., LLM], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files: dict[str, bytes | None] = {"generation_config.json": b'{"eos_token_id": [-1, 2]}'}
    with caplog.at_level(logging.WARNING, "aethermind"):
        llm = open_demo(model=copy_demo(tmp_path / "model", {"eos_token_id": [3, -2]}, files))
    assert llm.engine.compiled.eos_token_ids == {2, 3, 2045}  # the last by the tokenizer
    for name, value in (("config", -2), ("generation_config", -1)):
        assert f"eos_token_id in {name}.json is {value}, which no token has: no answer ends with it." in caplog.text


def test_max_tokens_none_goes_on_to_the_end_of_the_context(open_demo: Callable[..., LLM]) -> None:
    llm = open_demo(max_model_len=24)
    result, brief = llm.generate(PROMPTS[0:2], [greedy(None), greedy(2)])  # type: ignore[arg-type]
    assert len(result.prompt_token_ids) + len(tokens(result)) == 24
    assert result.outputs[0].finish_reason == "length"
    assert len(tokens(brief)) == 2


def test_more_requests_than_max_num_seqs(open_demo: Callable[..., LLM], demo: LLM) -> None:
    llm = open_demo(max_num_seqs=2, max_num_batched_tokens=8)
    crowded, free = (one.generate(PROMPTS * 2, greedy(6)) for one in (llm, demo))
    assert [tokens(one) for one in crowded] == [tokens(one) for one in free]


def test_characters_of_several_bytes(demo: LLM) -> None:
    prompt = "Ünïcödé 漢字 🦊!"
    ids = Tokenizer.from_directory(DEMO).encode(prompt)
    (result,) = demo.generate(prompt, SamplingParams(temperature=5.0, seed=2, max_tokens=24, ignore_eos=True))
    assert result.prompt_token_ids == ids
    assert result.outputs[0].text == demo.tokenizer.decode(tokens(result))


def test_on_output_sees_every_step(demo: LLM) -> None:
    seen: list[tuple[str, int]] = []
    demo.generate(
        PROMPTS[:2], greedy(3), on_output=lambda output: seen.append((output.request_id, len(tokens(output))))
    )
    first, second = sorted({request_id for request_id, _ in seen}, key=int)
    assert sorted(seen) == sorted((request_id, count) for request_id in (first, second) for count in (1, 2, 3))


class CallbackError(Exception):
    """What a caller's own callback raises."""


def test_an_exception_of_the_callback_ends_all_requests(demo: LLM) -> None:
    def interrupt(_: RequestOutput) -> None:
        raise CallbackError

    with pytest.raises(CallbackError):
        demo.generate(PROMPTS, greedy(), on_output=interrupt)


def test_progress_bar(demo: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    demo.generate(PROMPTS[:2], greedy(1), use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Processed prompts" in captured.err


def test_info_says_what_was_loaded(demo: LLM, device: str) -> None:
    info = demo.info
    assert (info.architecture, info.device, info.dtype) == ("Qwen2ForCausalLM", f"{device}:0", "float32")
    assert info.num_parameters == sum(math.prod(t.shape) for t in _weights(demo))
    assert info.weight_bytes >= 4 * info.num_parameters
    assert info.max_model_len == 128
    head_dim = CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    values_of_token = 2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * head_dim
    assert info.kv_cache_bytes == 4 * values_of_token * info.block_size * info.num_kv_blocks


def _weights(llm: LLM) -> list[object]:
    from aethermind.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(Path(llm.info.model))
    return [checkpoint.info(name) for name in checkpoint.names]


def test_a_forked_process_gets_an_error_instead_of_a_deadlock(demo: LLM) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        for ask in (demo.generate, demo.embed):
            try:
                ask("Once")
            except EngineDeadError as error:
                os.write(tell, f"{error}\n".encode())
        os._exit(0)
    os.close(tell)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(told) as lines:
        assert [line[:52] for line in lines] == ["The model was loaded before this process was forked,"] * 2
    assert demo.generate("Once", SamplingParams(max_tokens=1))


def test_context_manager_closes_the_device(open_demo: Callable[..., LLM]) -> None:
    with open_demo() as llm:
        assert len(tokens(llm.generate("A", greedy(1))[0])) == 1
