"""The workload of a load test: random prompts that arrive in a closed loop, as a Poisson process, or from a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.engine.simulation.trace import TraceRequest

__all__ = ["BenchRequest", "random_requests", "requests_of_trace"]

_FIRST_ID = 256
"""Prompts consist of the ids from here to 511, which are words or pieces of words in common vocabularies."""

_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they",
    "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we",
)  # fmt: skip
"""Words in place of token ids for servers that accept only text; most vocabularies have a token for each."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request of the workload.

    `arrival_s` is in seconds from the start; None for as soon as another request has been answered. `hash_ids` identify
    the blocks of `block_tokens` tokens that the prompt begins with: equal ids have equal content. `extra` holds further
    fields of the request.
    """

    arrival_s: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    seed: str
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def token_ids(self) -> list[int]:
        """Return the prompt's token ids, which depend on `seed`, `hash_ids` and lengths only."""
        blocks = [Random(f"piece {hash_id}").randbytes(self.block_tokens) for hash_id in self.hash_ids]
        content = b"".join(blocks)[: self.num_prompt_tokens]
        content += Random(self.seed).randbytes(self.num_prompt_tokens - len(content))
        return [_FIRST_ID + byte for byte in content]

    def text(self) -> str:
        """Return the prompt as text, about one word per token."""
        return " ".join(_WORDS[token_id % len(_WORDS)] for token_id in self.token_ids())


def random_requests(
    count: int, num_prompt_tokens: int, num_output_tokens: int, *, request_rate: float | None, seed: int
) -> list[BenchRequest]:
    """Return requests of one size. With a rate, in requests per second, they arrive as a Poisson process."""
    arrivals: Iterator[float | None] = iter([None] * count)
    if request_rate is not None:
        random = Random(seed)
        arrivals = accumulate((random.expovariate(request_rate) for _ in range(count - 1)), initial=0.0)
    return [
        BenchRequest(arrival_s, num_prompt_tokens, num_output_tokens, f"{seed} {index}")
        for index, arrival_s in enumerate(arrivals)
    ]


def requests_of_trace(requests: Sequence[TraceRequest], *, rate_scale: float, seed: int) -> list[BenchRequest]:
    """Return the requests of a trace, `rate_scale` times as fast. Prompts and answers have at least one token."""
    from aethermind.engine.simulation.trace import HASH_BLOCK_TOKENS

    return [
        BenchRequest(
            request.arrival_s / rate_scale,
            max(request.num_prompt_tokens, 1),
            max(request.num_output_tokens, 1),
            f"{seed} {index}",
            request.hash_ids,
            HASH_BLOCK_TOKENS,
            _extra(request),
        )
        for index, request in enumerate(requests)
    ]


def _extra(request: TraceRequest) -> dict[str, Any]:
    extra = {"priority": request.priority, "deadline_ms": request.deadline_ms}
    return {name: value for name, value in extra.items() if value is not None}
