"""The end tokens of a GGUF file: those that it names, and control tokens recognised by their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from aethermind.checkpoint.gguf import GgufFile
from aethermind.model.gguf_source import end_token_ids

TOKENS = ["<|endoftext|>", "</s>", "<|im_start|>", "<|im_end|>", "a", "<|eot_id|>"]
TYPES = [3, 1, 3, 3, 1, 4]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [0, 3]),
        ({"eos": 3}, [3, 0]),
        ({"eos": 4, "eot": 3, "eom": 5}, [4, 3, 5, 0]),
        ({"tokens": None}, []),
        ({"eos": 3, "token_type": None}, [3]),
        ({"eos": 3, "token_type": [3]}, [3, 0]),
        ({"tokens": ["<|return|>", "", "<|end|>", "<|call|>"]}, [0, 3]),
        ({"tokens": ["", "", "<|end|>"]}, [2]),
    ],
)
def test_ends(tmp_path: Path, keys: dict[str, Any], expected: list[int]) -> None:
    """In the vocabulary of gpt-oss `<|end|>` ends a message, not the answer.

    The second token is a word of the vocabulary, the last one a text that users may write."""
    writer = gguf.GGUFWriter(tmp_path / "ends.gguf", "llama")
    for name, value in {"tokens": TOKENS, "token_type": TYPES, **keys}.items():
        if isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
        elif value is not None:
            writer.add_array(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert end_token_ids(GgufFile(tmp_path / "ends.gguf").metadata) == expected
