"""What Llama's package refuses, and reads from older files; the conformance kit compares it with transformers."""

from __future__ import annotations

import pytest
import transformers

from aethermind.errors import ConfigError
from aethermind_llama.architecture import LLAMA, MISTRAL
from aethermind_llama.conformance import CASES


def test_an_unsupported_feature_is_named() -> None:
    with pytest.raises(ConfigError, match="mlp_bias is true"):
        LLAMA.create({"mlp_bias": True})


def test_mistral_has_a_sliding_window_unless_disabled() -> None:
    """As transformers' MistralConfig has it."""
    said_nothing = {name: value for name, value in CASES[0].config.items() if name != "sliding_window"}
    theirs = transformers.MistralConfig(**said_nothing).sliding_window
    assert MISTRAL.create(said_nothing).config.sliding_windows == (theirs, theirs)
    assert MISTRAL.create({**said_nothing, "sliding_window": None}).config.sliding_windows == (0, 0)


def test_mistral_reads_the_window_of_its_older_config() -> None:
    """Mistral 7B v0.1 says sliding_window alone, without layer_types."""
    (older,) = [case for case in CASES if case.name == "mistral"]
    assert MISTRAL.create(older.config).config.sliding_windows == (7, 7)
