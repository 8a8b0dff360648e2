"""Controls of a request in tokens, for a tokenizer that has more of them than the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aethermind import SamplingParams
from aethermind.engine.requests.logits_constraints import ConstraintsBuilder
from aethermind.plugins.registry import Registry


def test_bad_words_with_tokens_outside_the_vocabulary_are_ignored() -> None:
    """A kernel that masks their last token would write beyond the row of logits."""
    ids = {"fox": [1, 7], " fox": [2], "hen": [8], " hen": [3, 8]}
    config = SimpleNamespace(vocab_size=8)
    compiled: Any = SimpleNamespace(model=SimpleNamespace(config=config))
    tokenizer: Any = SimpleNamespace(encode_continuation=ids.get)
    controls = ConstraintsBuilder(compiled, tokenizer, Registry("Logits processor", "logits processor")).build(
        SamplingParams(bad_words=["fox", "hen"])
    )
    assert controls is not None
    assert controls.bad_words == ((1, 7), (2,))
