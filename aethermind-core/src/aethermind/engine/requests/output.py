"""What a request gave back so far, in the names that scripts for vLLM know.

Nobody changes an output once it is made, though none is frozen: every token makes some, and a frozen dataclass takes
four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of one token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds of `time.perf_counter`; `admitted_s` is when the request was first let in to run.
    `num_preemptions` is how often it gave way since. Of `num_draft_tokens` that were checked, `num_accepted_tokens`
    were right (see `engine.speculative`).
    """

    arrival_s: float
    first_token_s: float | None
    finished_s: float | None
    admitted_s: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One of the answers to a prompt. `finish_reason` is None while it grows, then stop, length or abort;
    `stop_reason` is the stop string or token.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(slots=True)
class RequestOutput:
    """A request with its answers so far; the last one has `finished` set. `error` says in words why it was aborted
    by the engine. `num_cached_tokens` of the prompt were not computed, because an earlier request had.

    `prompt_logprobs`, where asked for, has an entry for each token of the prompt; that of the first is None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    error: str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
