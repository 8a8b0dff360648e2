"""Records of requests: what the log, the metrics and the traces show of an HTTP request and of each prompt in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.output_delta import OutputDelta
    from aethermind.sampling.params import SamplingParams

__all__ = ["EmbeddingRecord", "GenerationRecord", "HttpRecord"]

_PROBES = frozenset({"/health", "/ready", "/metrics", "/version"})


@dataclass(slots=True)
class GenerationRecord:
    """A prompt and its answers. Points in time are those of `time.perf_counter`. Mutable.

    `arrived_s` is the arrival of the HTTP request, so TTFT includes reading and tokenising it. `queue_s`, `prefill_s`
    and `decode_s` are the durations of the engine's phases.
    """

    model: str
    arrived_s: float
    params: SamplingParams
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Tokens of all answers."""
    longest_answer: int = 0
    """Tokens of the longest answer."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    num_preemptions: int = 0
    finish_reasons: Sequence[str] = ()
    """One for each answer once all have ended: stop, length, abort (the client disconnected) or error."""
    answer_reasons: dict[int, str | None] = field(default_factory=dict)
    """The finish reason of each answer so far, by its index."""

    def update(self, delta: OutputDelta) -> int:
        """Update the record by new output; returns the number of new tokens."""
        num_new = 0
        for one in delta.completions:
            num_new += len(one.token_ids)
            self.answer_reasons[one.index] = one.finish_reason
            self.longest_answer = max(self.longest_answer, one.num_tokens)
        self.num_output_tokens += num_new
        if num_new:
            self.last_token_s = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = self.last_token_s
        times = delta.metrics
        self.num_prompt_tokens = delta.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens
        self.num_preemptions = times.num_preemptions
        if delta.finished:
            self.finish_reasons = tuple(self.answer_reasons[index] or "abort" for index in sorted(self.answer_reasons))
            self.queue_s = _between(times.arrival_s, times.admitted_s)
            self.prefill_s = _between(times.admitted_s, times.first_token_s)
            self.decode_s = _between(times.first_token_s, times.finished_s)
        return num_new

    @property
    def inference_s(self) -> float | None:
        """Seconds of prefill and decode."""
        return None if self.prefill_s is None or self.decode_s is None else self.prefill_s + self.decode_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first (TPOT). Answers to one prompt are generated in one batch."""
        if self.first_token_s is None or self.last_token_s is None or self.longest_answer < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.longest_answer - 1)


@dataclass(frozen=True, slots=True)
class EmbeddingRecord:
    """The texts of an embedding request."""

    model: str
    num_prompt_tokens: int


@dataclass(slots=True)
class HttpRecord:
    """One HTTP request. `request_id` is the server's id; `client_id` is the client's own, which is not unique.

    `tenant` is the name of the API key's owner, never the key. Mutable.
    """

    request_id: str
    method: str
    path: str
    client: str | None = None
    """The address of the client, or of the proxy in front of the server."""
    client_id: str | None = None
    arrived_s: float = field(default_factory=time.perf_counter)
    ended_s: float | None = None
    route: str = "other"
    """The path pattern of the route, a label of low cardinality; `other` for an unknown path."""
    status: int | None = None
    """None if the client disconnected before the response started."""
    error_code: str | None = None
    tenant: str | None = None
    user: str | None = None
    """The end user, as the client names it."""
    is_stream: bool = False
    prompts: list[str | Sequence[int]] | None = None
    """The prompts, only if the server logs them."""
    generations: list[GenerationRecord] = field(default_factory=list)
    embedding: EmbeddingRecord | None = None

    @property
    def is_api_call(self) -> bool:
        """Whether the request is neither a health probe nor a file of the chat page."""
        return self.route not in _PROBES and not self.route.startswith("/assets")

    @property
    def duration_s(self) -> float:
        """Seconds from its arrival to the end of its response, or until now."""
        return (time.perf_counter() if self.ended_s is None else self.ended_s) - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """The least time to first token of its prompts."""
        return min((one.ttft_s for one in self.generations if one.ttft_s is not None), default=None)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
