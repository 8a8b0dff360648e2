"""What a few requests carry besides their parameters: bad words in tokens, masks, guides, processors on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.sampling.guidance import TokenGuide
    from aethermind.sampling.params import SamplingParams

__all__ = ["LogitsProcessor", "LogitsProcessorFactory", "TokenControls", "pack_mask"]

LogitsProcessor = Callable[[Sequence[int], Sequence[int], "npt.NDArray[np.float32]"], None]
"""`processor(prompt_token_ids, output_token_ids, logits)` changes one row of logits, float32 [V], in place."""

LogitsProcessorFactory = Callable[["SamplingParams", Any], LogitsProcessor]
"""`factory(params, tokenizer)` makes one request's processor; InvalidArgumentError where `params.extra_args` are wrong.
"""


@dataclass(slots=True)
class TokenControls:
    """Of one request. `bad_words` are token sequences, `allowed` is a mask like the guide's (int32 [W]) or None."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: npt.NDArray[np.int32] | None = None
    guide: TokenGuide | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    def fork(self, processors: tuple[LogitsProcessor, ...]) -> TokenControls:
        """The controls of another answer to the same prompt, with processors of its own."""
        return replace(self, guide=None if self.guide is None else self.guide.fork(), processors=processors)

    def banned(self, output_token_ids: Sequence[int]) -> list[int]:
        """The tokens that would complete a bad word."""
        found = []
        for *beginning, last in self.bad_words:
            count = len(beginning)
            if count <= len(output_token_ids) and list(output_token_ids[len(output_token_ids) - count :]) == beginning:
                found.append(last)
        return found


def pack_mask(token_ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    """The bitmask of some tokens, int32 [ceil(V / 32)]: bit t % 32 of word t // 32 for token t."""
    import numpy as np

    bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
