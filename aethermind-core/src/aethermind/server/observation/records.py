"""What is known of a request while it is served: of the HTTP request as a whole, and of each prompt in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aethermind.engine.requests.output import RequestOutput
    from aethermind.sampling.params import SamplingParams

__all__ = ["EmbeddingRecord", "GenerationRecord", "HttpRecord"]

_PROBES = frozenset({"/health", "/ready", "/metrics", "/version"})


@dataclass(slots=True)
class GenerationRecord:
    """A prompt and its answers, as the server saw them grow. Times are those of `time.perf_counter`. Mutable.

    `arrived_s` is when the HTTP request arrived, so that reading and tokenising it count as waiting. The engine's own
    times split what followed: in the queue until `queue_s` seconds had passed, then `prefill_s`, then `decode_s`.
    """

    model: str
    arrived_s: float
    params: SamplingParams
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    """Of all answers."""
    longest_answer: int = 0
    """Tokens of the longest."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    num_preemptions: int = 0
    finish_reasons: Sequence[str] = ()
    """One for each answer once there is no more to come: stop, length, abort (the client left), or error."""

    def grow(self, output: RequestOutput) -> int:
        """Take the newest state; returns how many tokens came with it."""
        lengths = [one.num_tokens for one in output.outputs]
        num_output_tokens = sum(lengths)
        self.longest_answer = max(lengths, default=0)
        num_new = num_output_tokens - self.num_output_tokens
        self.num_output_tokens = num_output_tokens
        if num_new:
            self.last_token_s = time.perf_counter()
            if self.first_token_s is None:
                self.first_token_s = self.last_token_s
        times = output.metrics
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = times.num_preemptions
        if output.finished:
            self.finish_reasons = tuple(one.finish_reason or "abort" for one in output.outputs)
            self.queue_s = _between(times.arrival_s, times.admitted_s)
            self.prefill_s = _between(times.admitted_s, times.first_token_s)
            self.decode_s = _between(times.first_token_s, times.finished_s)
        return num_new

    @property
    def inference_s(self) -> float | None:
        """Seconds in the engine after the queue."""
        return None if self.prefill_s is None or self.decode_s is None else self.prefill_s + self.decode_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token of an answer after the first. Those to one prompt are written side by side."""
        if self.first_token_s is None or self.last_token_s is None or self.longest_answer < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.longest_answer - 1)


@dataclass(frozen=True, slots=True)
class EmbeddingRecord:
    """Texts of which vectors are made."""

    model: str
    num_prompt_tokens: int


@dataclass(slots=True)
class HttpRecord:
    """One HTTP request. `request_id` is the server's; `client_id` is what the client calls it, which nobody trusts.

    `tenant` is the name that goes with the client's key, never the key. Mutable.
    """

    request_id: str
    method: str
    path: str
    client: str | None = None
    """The address that it came from: the client's, or that of a proxy before it."""
    client_id: str | None = None
    arrived_s: float = field(default_factory=time.perf_counter)
    ended_s: float | None = None
    route: str = "other"
    """The URL's pattern, of which there are few; `other` where none goes with it."""
    status: int | None = None
    """None where the client was gone before there was an answer."""
    error_code: str | None = None
    tenant: str | None = None
    user: str | None = None
    """What the client says about who asks."""
    is_stream: bool = False
    prompts: list[str | Sequence[int]] | None = None
    """What was asked, only where the server was told to keep it."""
    generations: list[GenerationRecord] = field(default_factory=list)
    embedding: EmbeddingRecord | None = None

    @property
    def is_work(self) -> bool:
        """Whether somebody wants something, and no monitor or page asks what it asks all the time."""
        return self.route not in _PROBES and not self.route.startswith("/assets")

    @property
    def duration_s(self) -> float:
        """From its arrival to the end of its answer, or until now."""
        return (time.perf_counter() if self.ended_s is None else self.ended_s) - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """When the first token of any of its answers came."""
        return min((one.ttft_s for one in self.generations if one.ttft_s is not None), default=None)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
