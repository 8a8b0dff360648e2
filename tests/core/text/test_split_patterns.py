"""Rules that split text, by their names in GGUF files, against another engine of regular expressions."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from aethermind.text.gguf_tokenizer import SplitRule
from aethermind.text.split_patterns import GGUF_SPLITS

RULES = list(dict.fromkeys(GGUF_SPLITS.values()))
_PARTS = ["a", "B", "\u00e9", "'s", "'LL", "1", "234", "\uff12", " ", "  ", "\n", "\r\n", "\t", "\u6f22", "\u304b",
          "\ud55c", "!", "(/", "$", "\u0964", "n\u0303"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(_PARTS), max_size=12).map("".join)


def patterns_of(rule: SplitRule) -> tuple[str, ...]:
    return (rule.pattern,) if isinstance(rule.pattern, str) else rule.pattern


def pieces(rule: SplitRule, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns_of(rule)]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


def pieces_by_regex(rule: SplitRule, text: str) -> list[str]:
    found = [text]
    for pattern in patterns_of(rule):
        compiled = regex.compile(pattern, flags=regex.V1)
        cut: list[str] = []
        for piece in found:
            at = 0
            for match in compiled.finditer(piece):
                cut += [piece[at : match.start()], match[0]]
                at = match.end()
            cut.append(piece[at:])
        found = [piece for piece in cut if piece]
    return found


@given(TEXTS)
def test_text_is_split_as_another_engine_does(text: str) -> None:
    for rule in RULES:
        found = pieces(rule, text)
        assert "".join(found) == text
        assert found == pieces_by_regex(rule, text)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama-bpe", ["Foo", "'s", " ", "123", "4"]),
        ("qwen2", ["Foo", "'s", " ", "1", "2", "3", "4"]),
        ("gpt-4o", ["Foo's", " ", "123", "4"]),
        ("tekken", ["Foo", "'s", " ", "1", "2", "3", "4"]),
        ("gpt-2", ["Foo", "'s", " 1234"]),
        ("superbpe", ["Foo's ", "1", "234"]),
        ("deepseek-llm", ["Foo", "'", "s", " ", "1234"]),
        ("tiny_aya", ["Foo's", " ", "1", "234"]),
        ("falcon", ["Foo", "'", "s", " ", "123", "4"]),
    ],
)
def test_rules_differ_as_their_models_do(name: str, wanted: list[str]) -> None:
    assert pieces(GGUF_SPLITS[name], "Foo's 1234") == wanted


def test_names_are_those_of_llama_cpp() -> None:
    """A sample of llama.cpp's list, of every kind."""
    names = "default llama-bpe deepseek-coder starcoder command-r qwen2 qwen35 viking kimi-k2 minicpm5 hunyuan-dense"
    assert set(names.split()) < set(GGUF_SPLITS)
    assert len(GGUF_SPLITS) >= 80
