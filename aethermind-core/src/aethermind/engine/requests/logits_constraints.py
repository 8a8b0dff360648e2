"""Builds the constraints on a request's logits from its sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError
from aethermind.sampling.guidance import Grammars
from aethermind.sampling.logits_constraints import LogitsConstraints, pack_mask

if TYPE_CHECKING:
    from concurrent.futures import Future

    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.plugins.registry import Registry
    from aethermind.sampling.guidance import Guide
    from aethermind.sampling.logits_constraints import LogitsProcessor, LogitsProcessorFactory
    from aethermind.sampling.params import SamplingParams
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ConstraintsBuilder"]

_MAX_MASK_THREADS = 4
"""Maximum number of threads that compute token masks; more would contend for locks."""


class ConstraintsBuilder:
    """Builds logits constraints for requests to one model. Compiled grammars are cached."""

    def __init__(
        self, compiled: CompiledModel, tokenizer: Tokenizer, logits_processors: Registry[LogitsProcessorFactory]
    ) -> None:
        self._compiled = compiled
        self._logits_processors = logits_processors
        self._tokenizer = tokenizer
        self._vocab_size = compiled.model.config.vocab_size

    @cached_property
    def _grammars(self) -> Grammars:
        num_threads = min(self._compiled.open_device.num_threads, _MAX_MASK_THREADS)
        return Grammars(
            self._tokenizer.as_json,
            self._vocab_size,
            self._compiled.eos_token_ids,
            num_lanes=max(num_threads, 1),
            token_bytes=self._token_text,
            token_to_id=self._tokenizer.token_to_id,
        )

    def prepare(self, params: SamplingParams) -> Future[Guide] | None:
        """Start to compile the grammar of structured outputs in a thread; None if the parameters have none.

        Any thread may call this.
        """
        return None if params.structured_outputs is None else self._grammars.prepare(params.structured_outputs)

    def build(self, params: SamplingParams, guide: Guide | None = None) -> LogitsConstraints | None:
        """Return the constraints of one request, None if it has none.

        `guide` is the result of `prepare`; without it the grammar is compiled here. InvalidArgumentError for token ids
        outside the vocabulary and for grammars that cannot be compiled.
        """
        if params.is_plain:
            return None
        self._check_token_ids(params.allowed_token_ids or ())
        self._check_token_ids(token_id for token_id, _ in params.logit_bias)
        constraints = LogitsConstraints(self._bad_word_token_ids(params.bad_words), processors=self.processors(params))
        if params.allowed_token_ids is not None:
            # As in vLLM, end tokens are allowed only if the caller lists them.
            constraints.allowed = pack_mask(params.allowed_token_ids, self._vocab_size)
        if params.structured_outputs is not None:
            constraints.guide = guide or self._grammars.guide(params.structured_outputs)
        return constraints

    def _token_text(self, token_id: int) -> bytes:
        """Return the text of a token, in bytes; special tokens have one too."""
        known = self._tokenizer.token_bytes(token_id)
        return self._tokenizer.token_text(token_id).encode() if known is None else known

    def processors(self, params: SamplingParams) -> tuple[LogitsProcessor, ...]:
        """Create the logits processors of one request; each request gets its own, because they may have state."""
        registry = self._logits_processors
        return tuple(registry.get(name)(params, self._tokenizer) for name in params.logits_processors)

    def _bad_word_token_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of each word within a text: without and with a space before it."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip() or word
            for spelling in (bare, f" {bare}"):
                token_ids = tuple(self._tokenizer.encode_continuation(spelling))
                if all(
                    token_id < self._vocab_size for token_id in token_ids
                ):  # token ids beyond the vocabulary have no logit
                    found[token_ids] = None
        return tuple(found)

    def _check_token_ids(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise InvalidArgumentError(
                    f"Token id {token_id} is out of range: the vocabulary has {self._vocab_size} entries, numbered "
                    "from 0."
                )
