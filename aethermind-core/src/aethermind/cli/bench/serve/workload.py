"""What is asked of the server, and when: random prompts that come steadily, by chance, or as a trace tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.engine.simulation.trace import TraceRequest

__all__ = ["Ask", "asks_of_trace", "random_asks"]

_FIRST_ID = 256
"""Prompts are of the ids from here to 511: words or pieces of words in the vocabularies that are in use."""

_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they",
    "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we",
)  # fmt: skip
"""What stands for token ids where a server wants text: a token each, in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `arrival_s` counts from the start; None: as soon as another one is answered.

    `hash_ids` name the pieces of `piece_tokens` tokens that the prompt begins with: equal ids, equal content.
    `wishes` are further members of the request.
    """

    arrival_s: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    seed: str
    hash_ids: tuple[int, ...] = ()
    piece_tokens: int = 0
    wishes: Mapping[str, Any] = field(default_factory=dict)

    def token_ids(self) -> list[int]:
        """The prompt: the same for the same ask, another for every other."""
        pieces = [Random(f"piece {one}").randbytes(self.piece_tokens) for one in self.hash_ids]
        content = b"".join(pieces)[: self.num_prompt_tokens]
        content += Random(self.seed).randbytes(self.num_prompt_tokens - len(content))
        return [_FIRST_ID + byte for byte in content]

    def text(self) -> str:
        """The prompt as words, about one for each token."""
        return " ".join(_WORDS[token_id % len(_WORDS)] for token_id in self.token_ids())


def random_asks(
    count: int, num_prompt_tokens: int, num_output_tokens: int, *, request_rate: float | None, seed: int
) -> list[Ask]:
    """Requests of one size. With a rate (in 1/s) they come as a Poisson process, the first one at once."""
    arrivals: Iterator[float | None] = iter([None] * count)
    if request_rate is not None:
        random = Random(seed)
        arrivals = accumulate((random.expovariate(request_rate) for _ in range(count - 1)), initial=0.0)
    return [
        Ask(arrival_s, num_prompt_tokens, num_output_tokens, f"{seed} {index}")
        for index, arrival_s in enumerate(arrivals)
    ]


def asks_of_trace(requests: Sequence[TraceRequest], *, rate_scale: float, seed: int) -> list[Ask]:
    """The requests of a trace, `rate_scale` times as fast. A prompt and an answer have at least one token."""
    from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS

    return [
        Ask(
            one.arrival_s / rate_scale,
            max(one.num_prompt_tokens, 1),
            max(one.num_output_tokens, 1),
            f"{seed} {index}",
            one.hash_ids,
            HASH_BLOCK_TOKENS,
            _wishes(one),
        )
        for index, one in enumerate(requests)
    ]


def _wishes(request: TraceRequest) -> dict[str, Any]:
    wishes = {"priority": request.priority, "deadline_ms": request.deadline_ms}
    return {name: value for name, value in wishes.items() if value is not None}
