"""What a caller asks of the engine besides an answer: how urgent a request is, how much it may take, which adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real

from aethermind.errors import InvalidArgumentError
from aethermind.python_api import document_fields

__all__ = ["RequestOptions"]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one request. Every value out of range raises `InvalidArgumentError`."""

    priority: int = 0
    """Smaller is more urgent; counts under the policy `priority`."""
    deadline_ms: float | None = None
    """Milliseconds after arrival by which the answer should be complete; counts under the policy `deadline`."""
    max_context_tokens: int | None = None
    """Most tokens of prompt and answer together; None is the context of the model."""
    max_new_tokens: int | None = None
    """Most tokens of the answer, whatever `SamplingParams.max_tokens` says; None is no limit."""
    cache_salt: bytes = b""
    """Prefixes are shared only between requests with the same salt, so that timing reveals no other prompts."""
    session: str = ""
    """Name of the conversation that the request is a turn of; its keys and values are kept for the next turn."""
    tenant: str = ""
    """The user or key that the request belongs to; counts under the policy `fair`."""
    adapter: str = ""
    """The name of the LoRA adapter to use; empty for none."""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int) or abs(self.priority) > 2**31:
            raise InvalidArgumentError(f"priority is {self.priority!r} but must be an integer; smaller is more urgent.")
        deadline = self.deadline_ms
        if deadline is not None and (
            isinstance(deadline, bool) or not isinstance(deadline, Real) or not 0 < deadline < math.inf
        ):
            raise InvalidArgumentError(
                f"deadline_ms is {deadline!r} but must be a number of milliseconds above 0; None sets none."
            )
        if not isinstance(self.cache_salt, bytes):
            raise InvalidArgumentError(f"cache_salt should be bytes, got {self.cache_salt!r:.80}.")
        for name in ("session", "tenant", "adapter"):
            if not isinstance(value := getattr(self, name), str):
                raise InvalidArgumentError(f"{name} should be a text, got {value!r:.80}.")
        for name in ("max_context_tokens", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(f"{name} is {value!r} but must be an integer of 1 or more; None sets none.")

    def within(self, max_new_tokens: int | None) -> RequestOptions:
        """The options with somebody else's quota of the answer, where that allows less than they do."""
        own = self.max_new_tokens
        if max_new_tokens is None or (own is not None and own <= max_new_tokens):
            return self
        return replace(self, max_new_tokens=max_new_tokens)

    def max_total_tokens(self, num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> int:
        """Prompt and output tokens at which a request ends: the least of what it asked for and what it may have."""
        limits = [max_model_len, self.max_context_tokens]
        limits += [None if most is None else num_prompt_tokens + most for most in (max_tokens, self.max_new_tokens)]
        return min(limit for limit in limits if limit is not None)


document_fields(RequestOptions)
