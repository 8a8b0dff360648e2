"""The sizes of the largest step of an engine, for which the memory of its plans is placed."""

from __future__ import annotations

from aethermind.cache.spec import KVCacheSpec
from aethermind.engine.config import EngineConfig
from aethermind.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from aethermind.text.tokenizer import MAX_END_TOKENS

__all__ = ["max_symbols"]

_MAX_DRAFTS = 128
"""The most draft tokens that a step verifies: each takes a row of logits, whose memory is reserved."""


def max_symbols(
    config: EngineConfig, max_model_len: int, cache: KVCacheSpec, vocab_size: int, num_eos: int
) -> dict[str, int]:
    """The symbols of the largest step: T tokens, S sequences, R rows of logits, B width of block tables, X, Y and Z
    entries of the adjusted sampler's token lists, E embeddings.
    """
    sequences = rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if config.speculative_method is not None:
        rows += min(sequences * config.num_speculative_tokens, _MAX_DRAFTS)
    longest = vocab_size if config.context_shift else max_model_len
    return {
        "T": config.max_num_batched_tokens,
        "S": sequences,
        "R": rows,
        "B": cache.table_width(max_model_len),
        "X": rows * min(longest, vocab_size),
        "Y": rows * min(MAX_STOP_TOKEN_IDS + num_eos + MAX_END_TOKENS + 2 * MAX_BAD_WORDS, vocab_size),
        "Z": rows * min(MAX_LOGIT_BIAS + longest, vocab_size),
        "E": config.max_num_batched_tokens,
    }
