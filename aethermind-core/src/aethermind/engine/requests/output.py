"""The output of a request, with vLLM's names, and log probabilities of tokens.

Outputs are not changed after they are created. Their dataclasses are not frozen, because outputs are created for every
token, and a frozen dataclass takes several times as long to create.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from aethermind import errors

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "TokenLogprobs",
    "raise_error",
    "read_logprobs",
]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds of `time.perf_counter`, and counts. `admitted_s` is when the request was first admitted to run.

    Of the `num_draft_tokens` that were verified, `num_accepted_tokens` were accepted (see `engine.speculative`).
    """

    arrival_s: float
    first_token_s: float | None
    finished_s: float | None
    admitted_s: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class CompletionOutput:
    """One completion of a prompt; a request with `n` > 1 has several.

    `finish_reason` is None until the completion ends, then stop, length or abort. `stop_reason` is the stop string or
    the id of the stop token.

    The token lists are shared with later outputs of the same request and copied on access; `since` copies only the
    tokens after a position.
    """

    __slots__ = (
        "_logprobs",
        "_num_logprobs",
        "_token_ids",
        "finish_reason",
        "index",
        "num_tokens",
        "stop_reason",
        "text",
    )

    def __init__(
        self,
        index: int,
        text: str,
        token_ids: list[int],
        logprobs: list[dict[int, Logprob]] | None,
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> None:
        self.index = index
        self.text = text
        self._token_ids = token_ids
        self.num_tokens = len(token_ids)
        self._logprobs = logprobs
        self._num_logprobs = 0 if logprobs is None else len(logprobs)
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return self._token_ids[: self.num_tokens]

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """For each generated token, log probabilities of it and of alternatives by token id; None if not requested."""
        return None if self._logprobs is None else self._logprobs[: self._num_logprobs]

    def since(self, num_tokens: int) -> tuple[list[int], list[dict[int, Logprob]] | None]:
        """Return `token_ids` and `logprobs` without the first `num_tokens`."""
        logprobs = None if self._logprobs is None else self._logprobs[num_tokens : self._num_logprobs]
        return self._token_ids[num_tokens : self.num_tokens], logprobs

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, CompletionOutput) else NotImplemented

    def __repr__(self) -> str:
        names = ("index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason")
        given = ", ".join(f"{name}={value!r}" for name, value in zip(names, self._values(), strict=True))
        return f"CompletionOutput({given})"

    def _values(self) -> tuple[object, ...]:
        return (self.index, self.text, self.token_ids, self.logprobs, self.finish_reason, self.stop_reason)


@dataclass(slots=True)
class RequestOutput:
    """A request with its completions so far. The last output of a request has `finished` set.

    `error` is the message of the error that ended it, `error_type` its class in `aethermind.errors`.
    `num_cached_tokens` tokens of the prompt were found in the prefix cache. `prompt_logprobs`, if requested, has an
    entry for each token of the prompt; the first is None.
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
    error_type: str | None = None

    def raise_error(self) -> None:
        """Raise `error` as an exception of class `error_type`; without effect if there is none."""
        if self.error is not None:
            raise_error(self.error, self.error_type)


def raise_error(error: str, error_type: str | None) -> NoReturn:
    """Raise an error, given its message and the name of its class in `aethermind.errors`."""
    raise getattr(errors, error_type or "AetherMindError")(error)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities before temperature and penalties, of a token and of the most likely tokens.

    `rank` is the token's (1 is the most likely), `top` has (token id, log probability) pairs, the most likely first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def read_logprobs(outputs: Sequence[np.ndarray[Any, Any]], num_top: Sequence[int | None]) -> list[TokenLogprobs | None]:
    """Read the log probabilities of a step from its LOGPROB_OUTPUTS (see `model_graph`), one entry for each row.

    `num_top` is the number of most likely tokens that each row gets; a row whose number is None gets None.
    """
    rows: list[TokenLogprobs | None] = []
    lists = (output.tolist() for output in outputs)
    for count, logprob, rank, token_ids, logprobs in zip(num_top, *lists, strict=True):
        if count is None:
            rows.append(None)
            continue
        top = tuple((token_id, value) for token_id, value in zip(token_ids, logprobs, strict=True) if token_id >= 0)
        rows.append(TokenLogprobs(logprob, rank, top[:count]))
    return rows
