"""A request: its options, its prompt and generated tokens, and how many of these are computed (in the KV cache)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from numbers import Real
from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError
from aethermind.plugins.compatibility import deprecated
from aethermind.python_api import document_fields
from aethermind.sampling.params import SamplingParams
from aethermind.sampling.rows import PenaltyState

if TYPE_CHECKING:
    from aethermind.engine.loading.adapters import AdapterChoice
    from aethermind.model.input_processor import EmbeddingSpan
    from aethermind.sampling.logits_constraints import LogitsConstraints

__all__ = ["FinishReason", "Request", "RequestOptions", "RequestState"]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one request for the scheduler and the cache. A value out of range raises `InvalidArgumentError`."""

    priority: int = 0
    """Smaller is more urgent; counts under the policy `priority`."""
    deadline_ms: float | None = None
    """Milliseconds after arrival by which the output should be complete; counts under the policy `deadline`."""
    max_context_tokens: int | None = None
    """Maximum number of prompt and output tokens together; None means the model's context length."""
    max_new_tokens: int | None = None
    """Upper limit of `SamplingParams.max_tokens`, the number of output tokens; None is no limit."""
    cache_salt: bytes = b""
    """Only requests with the same salt share cached prefixes, so that timing does not reveal the prompts of others."""
    session: str = ""
    """Name of the conversation that the request is a turn of; its keys and values are kept for the next turn."""
    tenant: str = ""
    """The user or key that the request belongs to; counts under the policy `fair`."""
    adapter: str = ""
    """The name of the LoRA adapter to use; empty for none."""
    visible_token_ids: tuple[int, ...] = ()
    """Special tokens that are part of the output's text, such as tags of tool calls; all others are left out."""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int) or abs(self.priority) > 2**31:
            raise InvalidArgumentError(
                f"priority is {self.priority!r} but must be an integer; smaller is more urgent.", param="priority"
            )
        deadline = self.deadline_ms
        if deadline is not None and (
            isinstance(deadline, bool) or not isinstance(deadline, Real) or not 0 < deadline < math.inf
        ):
            raise InvalidArgumentError(
                f"deadline_ms is {deadline!r} but must be a number of milliseconds above 0; None means no deadline.",
                param="deadline_ms",
            )
        if not isinstance(self.cache_salt, bytes):
            raise InvalidArgumentError(f"cache_salt should be bytes, got {self.cache_salt!r:.80}.", param="cache_salt")
        for name in ("session", "tenant", "adapter"):
            if not isinstance(value := getattr(self, name), str):
                raise InvalidArgumentError(f"{name} should be a text, got {value!r:.80}.", param=name)
        for name in ("max_context_tokens", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(
                    f"{name} is {value!r} but must be 1 or more; None means no limit.", param=name
                )

    def within(self, max_new_tokens: int | None) -> RequestOptions:
        """Return the options with `max_new_tokens` lowered to this limit, such as the engine's own."""
        if max_new_tokens is None or (self.max_new_tokens is not None and self.max_new_tokens <= max_new_tokens):
            return self
        return replace(self, max_new_tokens=max_new_tokens)

    def max_total_tokens(
        self, num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, *, shifts_context: bool = False
    ) -> int:
        """Return the number of prompt and output tokens at which a request ends: the lowest of all limits.

        With `shifts_context` a request may have more tokens than the context. Its output then has at most `max_tokens`
        tokens; without that, at most `max_model_len`.
        """
        limits = [None if shifts_context else max_model_len, self.max_context_tokens]
        if shifts_context and max_tokens is None:
            max_tokens = max_model_len
        limits += [None if limit is None else num_prompt_tokens + limit for limit in (max_tokens, self.max_new_tokens)]
        return min(limit for limit in limits if limit is not None)


document_fields(RequestOptions)

_NO_OPTIONS = RequestOptions()


class RequestState(Enum):
    """The state of a request in the scheduler."""

    WAITING = "waiting"
    """Not admitted yet."""
    RUNNING = "running"
    """Holds KV blocks, and each step may compute some of its tokens."""
    PREEMPTED = "preempted"
    """Its blocks were freed for other requests. It resumes from swapped-out blocks or by recomputation."""
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended, in the terms of the completion APIs."""

    STOP = "stop"
    """A stop token or stop string was generated."""
    LENGTH = "length"
    """`max_tokens` or the end of the context was reached."""
    ABORT = "abort"
    """The request was cancelled, or failed."""


class Request:
    """One prompt and its output. The scheduler changes its state; the engine appends tokens. Mutable.

    The first `num_computed_tokens` of `all_token_ids` have their keys and values in the cache. Those of the newest
    token are never there: the step that computes them samples the next token.
    """

    __slots__ = (
        "_penalties",
        "adapter",
        "admitted",
        "all_token_ids",
        "arrival",
        "constraints",
        "deadline",
        "draft_token_ids",
        "embeddings",
        "embeddings_end",
        "eos_token_ids",
        "extra_key",
        "finish_reason",
        "fork_at",
        "max_model_len",
        "max_total_tokens",
        "needs_prompt_logprobs",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_dropped_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens_at_resume",
        "output_token_ids",
        "params",
        "priority",
        "prompt_token_ids",
        "request_id",
        "seed",
        "session",
        "state",
        "stop_token_ids",
        "tenant",
        "virtual_arrival",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        arrival: float,
        *,
        max_model_len: int,
        options: RequestOptions = _NO_OPTIONS,
        seed: int = 0,
        eos_token_ids: Iterable[int] = (),
        embeddings: Sequence[EmbeddingSpan] = (),
        constraints: LogitsConstraints | None = None,
        adapter: AdapterChoice | None = None,
        shifts_context: bool = False,
    ) -> None:
        """Create a waiting request.

        `arrival` is in seconds of the engine's clock. `seed` is used if `params.seed` is None. The prompt must have at
        least one token and be shorter than `max_model_len`; callers check that (`check_prompt`). With `shifts_context`
        prompt and output together may be longer than `max_model_len` (see `scheduling.context_shift`).
        """
        assert 0 < len(prompt_token_ids) < max_model_len, (
            f"request {request_id}: {len(prompt_token_ids)} prompt tokens in a context of {max_model_len}"
        )
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        self.params = params
        self.arrival = arrival
        self.virtual_arrival = arrival
        """The arrival time that a `SharingPolicy` orders by; equal to `arrival` under other policies."""
        self.admitted: float | None = None
        """When it was first admitted, in seconds of the engine's clock."""
        self.priority = options.priority
        self.session = options.session
        self.tenant = options.tenant
        self.deadline = None if options.deadline_ms is None else arrival + options.deadline_ms / 1e3
        """When the output should be complete, in seconds of the engine's clock."""
        self.seed = seed if params.seed is None else params.seed
        self.eos_token_ids = frozenset(eos_token_ids)
        self.stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.stop_token_ids |= self.eos_token_ids
        """The ids that end this request: those of its parameters, and the model's unless `ignore_eos`."""
        self.constraints = constraints
        """Constraints and processors of its logits; None for most requests."""
        self.embeddings = tuple(embeddings)
        """Input embeddings that replace those of the token ids at some positions of the prompt."""
        self.embeddings_end = self.embeddings[-1].end if self.embeddings else 0
        """The position after the last token that has an input embedding."""
        self.adapter = -1 if adapter is None else adapter.number
        """The index of its LoRA adapter, negative for none."""
        adapter_key = b"" if adapter is None else adapter.key
        self.extra_key = adapter_key + options.cache_salt + b"".join(span.digest() for span in self.embeddings)
        """Part of the prefix cache's key: all that keys and values depend on besides token ids."""
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.max_model_len = max_model_len
        """The most tokens whose keys and values are in the cache at once."""
        self.max_total_tokens = options.max_total_tokens(
            self.num_prompt_tokens, params.max_tokens, max_model_len, shifts_context=shifts_context
        )
        """Prompt and output tokens at which the request ends."""
        self.all_token_ids = list(self.prompt_token_ids)
        """Prompt and output tokens in one list."""
        self.output_token_ids: list[int] = []
        self._penalties: PenaltyState | None = None
        self.draft_token_ids: list[int] = []
        """Draft tokens that the next step may verify (see `engine.speculative`)."""
        self.num_draft_tokens = 0
        """Draft tokens that were verified; `num_accepted_tokens` of them were accepted."""
        self.num_accepted_tokens = 0
        self.num_computed_tokens = 0
        self.num_dropped_tokens = 0
        """Computed tokens that context shifts dropped from the cache. A later token with the index *i* in
        `all_token_ids`
        has the index *i - num_dropped_tokens* in the cache."""
        self.num_cached_tokens = 0
        """Leading prompt tokens that were found in the prefix cache when the request was first admitted."""
        self.num_preemptions = 0
        self.num_tokens_at_resume = 0
        """Number of prompt and output tokens when it was last resumed after a preemption."""
        self.fork_at = 0
        """A number of computed tokens at which a step of this request has to end, so that other completions of its
        prompt
        can fork a recurrent state of exactly these tokens; 0 for none."""
        self.needs_prompt_logprobs = False
        """Whether log probabilities of its prompt are to be computed before it is admitted (`prompt_logprobs`)."""
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.output_token_ids)

    @property
    def penalties(self) -> PenaltyState:
        """Token counts for penalties, including the newest tokens."""
        if self._penalties is None:
            self._penalties = PenaltyState(self.params)
        return self._penalties.update(self.all_token_ids, self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed, including the newest."""
        return len(self.all_token_ids) - self.num_computed_tokens

    @property
    def context_end(self) -> int:
        """The number of computed tokens at which the cache of the request is full."""
        return self.max_model_len + self.num_dropped_tokens

    @property
    def num_kv_tokens(self) -> int:
        """The number of tokens for which the request needs KV slots once all its tokens so far are computed."""
        return min(len(self.all_token_ids) - self.num_dropped_tokens, self.max_model_len)

    @property
    def place(self) -> float:
        """Deprecated name of `virtual_arrival`."""
        deprecated("Request.place", instead="Request.virtual_arrival", until="0.4")
        return self.virtual_arrival

    @property
    def num_missing_tokens(self) -> int:
        """Deprecated name of `num_uncomputed_tokens`."""
        deprecated("Request.num_missing_tokens", instead="Request.num_uncomputed_tokens", until="0.4")
        return self.num_uncomputed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token is to be computed: a prompt, or all tokens after a preemption."""
        return self.num_uncomputed_tokens > 1

    @property
    def is_just_resumed(self) -> bool:
        """Whether it was preempted and has generated no token since it was admitted again."""
        return self.num_preemptions > 0 and len(self.all_token_ids) == self.num_tokens_at_resume

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for any reason."""
        return self.state is RequestState.FINISHED

    def append_token(self, token_id: int) -> FinishReason | None:
        """Append a generated token; returns why the request ends with it, or None.

        A stop token among the first `min_tokens - 1` does not end the request. Stop strings are matched where the text
        is (`OutputBuilder`).
        """
        self.all_token_ids.append(token_id)
        self.output_token_ids.append(token_id)
        if token_id in self.stop_token_ids and len(self.output_token_ids) >= self.params.min_tokens:
            return FinishReason.STOP
        if len(self.all_token_ids) >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.value}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )
