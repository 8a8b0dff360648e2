"""Constraints on a request's logits beyond its parameters: bad words, token masks, grammars, logits processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.guidance import Guide
    from aethermind.sampling.params import SamplingParams

__all__ = ["LogitsConstraints", "LogitsProcessor", "LogitsProcessorFactory", "pack_mask"]

LogitsProcessor = Callable[[Sequence[int], Sequence[int], "npt.NDArray[np.float32]"], None]
"""`processor(prompt_token_ids, output_token_ids, logits)` changes one row of logits, float32 [V], in place."""

LogitsProcessorFactory = Callable[["SamplingParams", Any], LogitsProcessor]
"""`factory(params, tokenizer)` creates one request's processor; InvalidArgumentError if `params.extra_args` are wrong.
"""


@dataclass(slots=True)
class LogitsConstraints:
    """The constraints of one request.

    Attributes:
        bad_words: token sequences that the answer must not contain.
        allowed: the mask of `allowed_token_ids`, int32 [W] as of `pack_mask`; None allows all tokens.
        guide: the state of the grammar of structured outputs.
        processors: logits processors, in the order in which they run.
    """

    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: npt.NDArray[np.int32] | None = None
    guide: Guide | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    def fork(self, processors: tuple[LogitsProcessor, ...]) -> LogitsConstraints:
        """Return the constraints of another answer to the same prompt, with the given processors."""
        return replace(self, guide=None if self.guide is None else self.guide.fork(), processors=processors)

    def banned(self, output_token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that would complete a bad word."""
        found = []
        for *beginning, last in self.bad_words:
            count = len(beginning)
            if count <= len(output_token_ids) and list(output_token_ids[len(output_token_ids) - count :]) == beginning:
                found.append(last)
        return found


def pack_mask(token_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    """Return the bitmask of some tokens, int32 [ceil(V / 32)]: bit t % 32 of word t // 32 for token t."""
    import numpy as np

    bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
