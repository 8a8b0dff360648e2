"""ConversationTokenCache: the model's own tokens where the conversation went on, the tokenizer's everywhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aethermind.text import Tokenizer
from aethermind.text.chat_prompt import ConversationTokenCache

HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TAIL = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"


@pytest.fixture
def memory(byte_level: Tokenizer) -> ConversationTokenCache:
    return ConversationTokenCache(byte_level)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """A token for each letter, as no tokenizer would choose them."""
    return [tokenizer.encode(letter)[0] for letter in text]


def test_an_answer_keeps_its_tokens(byte_level: Tokenizer, memory: ConversationTokenCache) -> None:
    head, answer = memory.encode(HEAD), letters(byte_level, "once upon")
    assert head == byte_level.encode(HEAD)
    assert answer != byte_level.encode("once upon")
    memory.add_answer(HEAD, head, "once upon", answer)
    assert memory.encode(HEAD + "once upon" + TAIL) == head + answer + byte_level.encode(TAIL)


def test_the_token_that_ended_it_is_the_templates_to_write(
    byte_level: Tokenizer, memory: ConversationTokenCache
) -> None:
    answer, end = letters(byte_level, "once"), byte_level.token_to_id("<|im_end|>")
    assert end is not None
    memory.add_answer(HEAD, memory.encode(HEAD), "once", [*answer, end])
    assert memory.encode(HEAD + "once" + TAIL) == byte_level.encode(HEAD) + answer + byte_level.encode(TAIL)


def test_answers_that_were_cut_or_taken_back_are_encoded(byte_level: Tokenizer, memory: ConversationTokenCache) -> None:
    head, answer = memory.encode(HEAD), letters(byte_level, "once upon")
    memory.add_answer(HEAD, head, "once u", answer)
    assert memory.encode(HEAD + "once u") == byte_level.encode(HEAD + "once u")
    memory.add_answer(HEAD, head, "once upon", answer)
    assert memory.encode(HEAD + "twice") == byte_level.encode(HEAD + "twice")
    assert memory.encode(HEAD + "once upon") == byte_level.encode(HEAD + "once upon"), "it went another way"


def test_taking_back_one_turn_keeps_those_before(byte_level: Tokenizer, memory: ConversationTokenCache) -> None:
    first, second = letters(byte_level, "once"), letters(byte_level, "upon")
    memory.add_answer(HEAD, memory.encode(HEAD), "once", first)
    text = HEAD + "once" + TAIL
    memory.add_answer(text, memory.encode(text), "upon", second)
    assert memory.encode(text + "upon")[-4:] == second
    assert memory.encode(text) == byte_level.encode(HEAD) + first + byte_level.encode(TAIL)


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=4), st.text(st.characters(codec="utf-8")))
def test_the_tokens_are_always_the_text(byte_level: Tokenizer, answers: list[str], end: str) -> None:
    memory, text = ConversationTokenCache(byte_level), HEAD
    for answer in answers:
        token_ids = [token for letter in answer for token in byte_level.encode(letter)]
        memory.add_answer(text, memory.encode(text), answer, token_ids)
        text += answer + TAIL
    expected = byte_level.decode(byte_level.encode(text + end), skip_special_tokens=False)
    assert byte_level.decode(memory.encode(text + end), skip_special_tokens=False) == expected
