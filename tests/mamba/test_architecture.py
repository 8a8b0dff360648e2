"""Configurations of Mamba 2 and Falcon-H1."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from aethermind.errors import ConfigError
from aethermind.model import Hybrid, Paged, Recurrent
from aethermind_mamba.falcon_h1 import FALCON_H1
from aethermind_mamba.mamba2 import MAMBA2
from aethermind_mamba.mixer_config import read_time_limits

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_an_empty_config_means_what_transformers_takes_it_for() -> None:
    model, theirs = MAMBA2.create({}), transformers.Mamba2Config()
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings"):
        assert getattr(model.config, name) == getattr(theirs, name), name
    for name in ("num_heads", "head_dim", "state_size", "conv_kernel"):
        assert getattr(model.mixer, name) == getattr(theirs, name), name
    assert model.mixer.num_groups == theirs.n_groups


def test_falcon_keeps_keys_and_values_and_a_state_in_every_layer() -> None:
    model = FALCON_H1.create({**SIZES, "mamba_n_heads": 4, "mamba_d_state": 16})
    state = Recurrent((("conv_state", (3, 64 + 2 * 16)), ("recurrent_state", (4, 16, 16))))
    assert model.cache_layout() == (Hybrid(Paged(2, 8, 8), state),)


@pytest.mark.parametrize(
    ("written", "limits"),
    [
        (None, (0.0, 0.0)),
        ([0.0, float("inf")], (0.0, 0.0)),
        ([0.001, 0.1], (0.001, 0.1)),
        ([0.0, {"__float__": "Infinity"}], (0.0, 0.0)),
    ],
)
def test_time_limits_are_read_in_all_spellings(written: Any, limits: tuple[float, float]) -> None:
    assert read_time_limits({"time_step_limit": written}) == limits


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        (MAMBA2, {"num_heads": 100}, r"num_heads \(100\) times head_dim"),
        (MAMBA2, {"n_groups": 3}, r"a multiple of n_groups \(3\)"),
        (FALCON_H1, {**SIZES, "mamba_n_heads": 5}, r"mamba_n_heads \(5\) times mamba_d_head"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(architecture: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        architecture.create(fields)
