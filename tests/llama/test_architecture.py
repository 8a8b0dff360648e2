"""What Llama's package refuses, and reads from older files; the conformance kit compares it with transformers."""

from __future__ import annotations

import pytest

from aethermind.errors import ConfigError
from aethermind_llama.architecture import LLAMA, MISTRAL
from aethermind_llama.conformance import CASES


def test_what_is_not_computed_is_named() -> None:
    with pytest.raises(ConfigError, match="attention_bias is true"):
        LLAMA.create({"attention_bias": True})


def test_mistral_reads_the_window_of_its_older_config() -> None:
    """Mistral 7B v0.1 says sliding_window alone, without layer_types."""
    (older,) = [case for case in CASES if case.name == "mistral"]
    assert MISTRAL.create(older.config).config.sliding_windows == (7, 7)
