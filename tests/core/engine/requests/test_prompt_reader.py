"""Prompts as users write them: which special tokens a text, a chat and a text to embed have, and where they are cut."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from aethermind.engine.requests.prompt_reader import PromptReader, TextToEmbed
from aethermind.errors import ContextLengthError
from aethermind.text.chat_prompt import chat_prompt
from aethermind.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]


class Splitter:
    """A tokenizer of words."""

    def __init__(self) -> None:
        self.num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self.num_chars += len(text)
        return [0] * len(text.split())


def reader(max_model_len: int | None) -> tuple[PromptReader, Splitter]:
    splitter: Any = Splitter()
    return PromptReader(splitter, "Any", lambda: None, max_model_len=max_model_len), splitter


@pytest.fixture
def tokenizer() -> Tokenizer:
    fast = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "hello": 1, "?": 2}, unk_token="?"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens(["<s>"])
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = "{{ bos_token }}{{ messages[0].content }}"
    return Tokenizer(fast, special_tokens={"bos_token": "<s>"}, chat_template=template)


@pytest.mark.parametrize("is_mapping", [False, True])
def test_a_text_begins_with_one_bos_token_and_so_does_a_chat(tokenizer: Tokenizer, is_mapping: bool) -> None:
    prompts = PromptReader(tokenizer, "Any", lambda: None)
    chat = chat_prompt(tokenizer, HELLO)
    for text, written in (("hello", "hello"), (chat, "<s>hello")):
        prompt: Any = {"prompt": text} if is_mapping else text
        read = prompts.read(prompt)
        assert (read.text, read.token_ids) == (written, [0, 1])
        assert type(read.text) is str, "it crosses to other processes"


@pytest.mark.parametrize("form", [str, lambda text: {"prompt": text}])
def test_a_text_far_too_long_is_rejected_after_encoding_its_beginning(form: Any) -> None:
    prompts, splitter = reader(10)
    with pytest.raises(ContextLengthError, match="has 32 tokens, of 50000 characters in all, and the context holds 10"):
        prompts.read(form("word " * 10_000))
    assert splitter.num_chars == 160


@pytest.mark.parametrize(
    ("max_model_len", "text", "num_tokens"),
    [(10, "word " * 12, 12), (10, "a" + " " * 10_000 + "b", 2), (None, "word " * 10_000, 10_000)],
)
def test_other_texts_are_encoded_whole(max_model_len: int | None, text: str, num_tokens: int) -> None:
    """Whether that fits is for the engine to say, which knows what else has to."""
    assert len(reader(max_model_len)[0].read(text).token_ids) == num_tokens


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("num_words", [0, 1, 3, 8, 3000])
def test_a_text_to_embed_is_truncated_as_the_tokenizers_library_does(
    tokenizer: Tokenizer, limit: int, num_words: int
) -> None:
    """The special tokens around it are kept."""
    text = "hello ? " * (num_words // 2) + "hello" * (num_words % 2)
    theirs = tokenizers.Tokenizer.from_str(tokenizer.as_json())
    theirs.enable_truncation(limit)
    reader = PromptReader(tokenizer, "Any", lambda: None, text_limit=limit)
    for prompt in (text, {"prompt": text}):
        assert reader.read(TextToEmbed.of(prompt)).token_ids == theirs.encode(text).ids
        assert len(reader.read(prompt).token_ids) == num_words + 1, "other texts are not cut"
    spaces = " " * 10_000 + text  # of which the beginning says nothing
    assert reader.read(TextToEmbed(spaces)).token_ids == theirs.encode(spaces).ids
    ids: Any = {"prompt_token_ids": [1] * 20}
    assert reader.read(TextToEmbed.of(ids)).token_ids == [1] * 20
