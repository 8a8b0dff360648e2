"""LLM.chat: conversations in, answers out, alone and together; what earlier turns computed is used again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.models import BOS, copy_demo, copy_demo_with_bos

from aethermind import LLM, RequestOptions, SamplingParams
from aethermind.errors import AetherMindError, InvalidArgumentError, TokenizerError
from aethermind.text.chat_prompt import ConversationTokenCache, chat_prompt
from aethermind.text.tokenizer import Tokenizer

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
HELLO = [{"role": "user", "content": "Tell me a story."}]
PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


def test_a_conversation_is_its_templates_prompt(demo: LLM) -> None:
    (answer,) = demo.chat(HELLO, PARAMS)
    (expected,) = demo.generate(PROMPT, PARAMS)
    assert answer.prompt == PROMPT
    assert answer.outputs[0] == expected.outputs[0]
    streamed = list(demo.stream_chat(HELLO, PARAMS))
    assert len(streamed) == 8
    assert streamed[-1].outputs[0] == expected.outputs[0]


def test_several_conversations_are_answered_together(demo: LLM) -> None:
    other = [{"role": "system", "content": "Be brief."}, *HELLO]
    together = demo.chat([HELLO, other], [PARAMS, SamplingParams(temperature=0.0, max_tokens=3)])
    alone = [*demo.chat(HELLO, PARAMS), *demo.chat(other, SamplingParams(temperature=0.0, max_tokens=3))]
    assert [one.outputs[0] for one in together] == [one.outputs[0] for one in alone]
    assert demo.chat([], PARAMS) == []


def test_a_conversation_takes_options_of_the_scheduler(open_demo: Callable[..., LLM]) -> None:
    """What one tenant asked is not found by another: a salt reaches the engine."""
    llm = open_demo(block_size=4)
    (first,) = llm.chat(HELLO, PARAMS, options=RequestOptions(cache_salt=b"one"))
    salts = (b"one", b"two")
    again = llm.chat([HELLO] * 2, PARAMS, options=[RequestOptions(cache_salt=salt) for salt in salts])
    assert first.num_cached_tokens == 0
    assert again[0].num_cached_tokens > 0 == again[1].num_cached_tokens
    *_, streamed = llm.stream_chat(HELLO, PARAMS, options=RequestOptions(cache_salt=b"three"))
    assert streamed.num_cached_tokens == 0
    with pytest.raises(InvalidArgumentError, match="options holds 2 RequestOptions for 1 prompt"):
        llm.chat(HELLO, PARAMS, options=[RequestOptions()] * 2)


@pytest.mark.parametrize("template", ["", " \n"])
def test_an_empty_template_of_a_model_is_no_template(tmp_path: Path, template: str) -> None:
    copy_demo(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.from_directory(tmp_path / "model")
    assert tokenizer.chat_template is None
    with pytest.raises(TokenizerError, match="has no chat template"):
        chat_prompt(tokenizer, HELLO)


def test_an_empty_template_given_is_the_model_s(demo: LLM) -> None:
    assert chat_prompt(demo.tokenizer, HELLO, chat_template="") == PROMPT


def test_the_next_turn_hits_the_prefix_cache(demo: LLM) -> None:
    (first,) = demo.chat(HELLO, PARAMS)
    answer = {"role": "assistant", "content": first.outputs[0].text}
    (second,) = demo.chat([*HELLO, answer, {"role": "user", "content": "Go on."}], PARAMS)
    block_size = demo.info.block_size
    assert second.num_cached_tokens >= len(first.prompt_token_ids) // block_size * block_size > 0


def test_with_a_token_memory_the_whole_conversation_hits_the_prefix_cache(open_demo: Callable[..., LLM]) -> None:
    """Hot samples seldom are what the tokenizer would make of their text."""
    llm = open_demo(block_size=1)
    memory = ConversationTokenCache(llm.tokenizer)
    messages = list(HELLO)
    known: list[int] = []
    for seed in range(3):
        params = SamplingParams(temperature=3.0, seed=seed, max_tokens=12, ignore_eos=True)
        with closing(llm.stream_chat(messages, params, memory=memory)) as outputs:
            *_, last = islice(outputs, 12 - seed)
        assert last.prompt_token_ids[: len(known)] == known
        assert last.num_cached_tokens >= max(len(known) - 1, 0)
        known = [*last.prompt_token_ids, *last.outputs[0].token_ids]
        text = last.outputs[0].text
        if llm.tokenizer.decode(last.outputs[0].token_ids, skip_special_tokens=False) != text:
            known = []
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    assert llm.tokenizer.encode(last.prompt or "") != last.prompt_token_ids


def test_template_options(demo: LLM) -> None:
    template = (
        "{{ mood }}:{% for m in messages %}{{ m.content }}{% endfor %}{{ '!' if add_generation_prompt }}{{ tools }}"
    )
    (answer,) = demo.chat(
        HELLO, PARAMS, chat_template=template, add_generation_prompt=False, tools=[], chat_template_kwargs={"mood": "x"}
    )
    assert answer.prompt == "x:Tell me a story.[]"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("hi", "A conversation is a list"),
        (None, "should be"),
        ([[]], "at least one message"),
        ([HELLO, ["hi"]], "chat message is"),
        ([{"content": "hi"}], "chat message is"),
        ([{"role": "user", "content": object()}], "JSON types"),
    ],
)
def test_messages_of_the_wrong_kind(demo: LLM, messages: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        demo.chat(messages, PARAMS)


def test_a_model_without_a_template(tmp_path: Any, runtime: Any) -> None:
    directory = copy_demo(tmp_path / "model", files={"tokenizer_config.json": None})
    llm = LLM(directory, device="numpy", max_model_len=64, runtime=runtime)
    with pytest.raises(TokenizerError, match="no chat template"):
        llm.chat(HELLO, PARAMS)
    (answer,) = llm.chat(HELLO, PARAMS, chat_template="{{ messages[0].content }}")
    assert answer.prompt == "Tell me a story."


def test_a_bos_token_that_the_template_writes_comes_once(tmp_path: Any, runtime: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = copy_demo_with_bos(tmp_path / "model")
    expected = PreTrainedTokenizerFast.from_pretrained(directory).apply_chat_template(HELLO, return_dict=False)
    with LLM(directory, device="numpy", max_model_len=64, runtime=runtime) as llm:
        (answer,) = llm.chat(HELLO, PARAMS)
        *_, streamed = llm.stream_chat(HELLO, PARAMS)
        (text,) = llm.generate("Tell me a story.", PARAMS)
    assert answer.prompt_token_ids == streamed.prompt_token_ids == text.prompt_token_ids == expected
    assert answer.prompt == streamed.prompt == f"{BOS}Tell me a story."


def test_a_conversation_longer_than_the_context(demo: LLM) -> None:
    with pytest.raises(AetherMindError, match="context holds 128"):
        demo.chat([{"role": "user", "content": "again and " * 200}], PARAMS)
