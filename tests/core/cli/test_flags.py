"""Messages that name arguments of Python name flags on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from aethermind.cli.flags import with_flags
from aethermind.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Raise num_kv_blocks or shorten the prompt.", "Raise --num-kv-blocks or shorten the prompt."),
        ("Pass dtype='float32', or int8 as kv_cache_dtype.", "Pass --dtype float32, or int8 as --kv-cache-dtype."),
        ("pass load_format='dummy' to run", "pass --load-format dummy to run"),
        ("pass one of them as dtype.", "pass one of them as --dtype."),
        ("this directory as adapters.", "this directory as --adapter."),
        ("num_threads should be 1", "--threads should be 1"),
        ("top_p is 2 and max_tokens 0", "--top-p is 2 and --max-tokens 0"),
        ("the model's dtype and device", "the model's dtype and device"),
        ("'max_tokens' is no key; [sampling.max_tokens]", "'max_tokens' is no key; [sampling.max_tokens]"),
        ("/data/max_model_len/x and --max-model-len", "/data/max_model_len/x and --max-model-len"),
        ("hidden_size is 7, max_position_embeddings 8", "hidden_size is 7, max_position_embeddings 8"),
        ("the adapter x; a seed; stop here", "the adapter x; a seed; stop here"),
    ],
)
def test_arguments_become_flags(message: str, shown: str) -> None:
    assert with_flags(message) == shown


def test_an_error_of_the_engine_names_the_flag(invoke: Any) -> None:
    words = ("generate", "Once upon a time", "--device", "numpy", "--max-model-len", "16", "-n", "4")
    refused = invoke(*words[:1], "fox " * 40, *words[2:])
    assert refused.exit_code == 2
    assert "raise --max-model-len if the model allows it" in refused.stderr
    assert "max_model_len" not in refused.stderr


def test_errors_in_python_name_the_argument() -> None:
    from aethermind import LLM

    with LLM("demo", device="numpy", max_model_len=16) as llm, pytest.raises(InvalidArgumentError) as refused:
        llm.generate("fox " * 40)
    assert "raise max_model_len" in str(refused.value)
