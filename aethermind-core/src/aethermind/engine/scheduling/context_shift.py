"""Context shift: when the context is full, generation continues after the oldest tokens are dropped.

    kept      dropped                later tokens
    K K K K | D D D D D D D D D D D | L L L L L L L L L L      the context is full
    K K K K | L L L L L L L L L L                              keys of L are rotated back by the number of D

A sequence drops tokens when its context is full and one more token is to be computed, so when it does depends on its
tokens alone. A request that is recomputed after a preemption drops the same tokens at the same points, and gets the
same keys and values. A prompt that does not fit is shortened by the same multiples, so that the next turns of a
conversation begin with the same tokens, whose blocks the prefix cache has.

Sources: llama.cpp's `--context-shift` and `--keep`; Xiao et al., Efficient Streaming Language Models with Attention
Sinks, 2023 (https://arxiv.org/abs/2309.17453).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from aethermind.cache.outcome import CacheOutcome
from aethermind.errors import ContextLengthError, InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import Request

__all__ = ["ContextShift"]


class ContextShift(NamedTuple):
    """Which tokens a full context drops: the `num_dropped` after the first `num_kept`, both multiples of a block."""

    max_model_len: int
    num_kept: int
    num_dropped: int

    @classmethod
    def of(cls, compiled: CompiledModel) -> Self | None:
        """Return the context shift of an engine's options; None if it is off.

        InvalidArgumentError if a context has too few blocks for it, as with `kv_cache_layout` static.
        """
        config, block_size = compiled.config, compiled.cache_spec.block_size
        if not config.context_shift:
            return None
        if block_size >= compiled.max_model_len:
            raise InvalidArgumentError(
                f"A context shift drops whole blocks, and a block of {block_size} tokens holds the whole context. "
                "Choose kv_cache_layout paged or cell, with a block_size below max_model_len.",
                param="kv_cache_layout",
            )
        num_kept = -(-config.num_keep // block_size) * block_size
        num_dropped = max((compiled.max_model_len - num_kept) // 2 // block_size, 1) * block_size
        if num_kept + num_dropped >= compiled.max_model_len:
            raise InvalidArgumentError(
                f"A context of {compiled.max_model_len} tokens in blocks of {block_size} cannot keep its first "
                f"{config.num_keep} tokens and drop others. Lower num_keep or block_size, or raise max_model_len.",
                param="num_keep",
            )
        return cls(compiled.max_model_len, num_kept, num_dropped)

    def shortened(self, token_ids: Sequence[int], *, needs_all: bool = False) -> Sequence[int]:
        """Shorten a prompt so that it fits the context with at least one output token.

        ContextLengthError if it is too long and all of it is needed (`needs_all`), as for prompt log probabilities.
        """
        num_excess = len(token_ids) - (self.max_model_len - 1)
        if num_excess <= 0:
            return token_ids
        if needs_all:
            raise ContextLengthError(
                f"The context holds {self.max_model_len} tokens, with at least one for the answer, and the prompt has "
                f"{len(token_ids)}. Prompt log probabilities need all of it: shorten the prompt, or ask for none."
            )
        end = self.num_kept + -(-num_excess // self.num_dropped) * self.num_dropped
        return [*token_ids[: self.num_kept], *token_ids[end:]]

    def is_due(self, request: Request) -> bool:
        """Whether the KV cache of a request is full, so that its next token needs a shift."""
        return request.num_computed_tokens == request.context_end

    def apply(self, cache: KVCache, request: Request) -> None:
        """Drop the oldest tokens of a running request whose context is full; its next reservation rotates the keys."""
        if not self.is_due(request):
            return
        end = self.num_kept + self.num_dropped
        for outcome in (
            cache.remove(request.request_id, self.num_kept, end),
            cache.shift(request.request_id, end, -self.num_dropped),
        ):
            assert outcome is CacheOutcome.OK, f"request {request.request_id} cannot be shifted: {outcome.value}"
        request.num_dropped_tokens += self.num_dropped
