"""An answer crosses piece by piece: what is new since the last state that was sent, and the same state at the far end.

States may be left out between two that are sent; a piece says all that came in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aethermind.engine.requests.output import CompletionOutput, Logprob, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from aethermind.engine.requests.prompt_reader import EnginePrompt

__all__ = ["OutputAccumulator", "SentOutput"]

_OF_REQUEST = ("request_id", "prompt", "prompt_token_ids")
"""What the far end knows without being told."""

_OTHERS = ("index", "finish_reason", "stop_reason")
_SETTLED = tuple(
    one.name for one in fields(RequestOutput) if one.name not in (*_OF_REQUEST, "outputs", "metrics", "prompt_logprobs")
)
_TIMES = tuple(one.name for one in fields(RequestMetrics))
_others_of = attrgetter(*_OTHERS)
_settled_of = attrgetter(*_SETTLED)
_times_of = attrgetter(*_TIMES)


class SentOutput:
    """What was sent of one request. Mutable."""

    __slots__ = ("_answers", "_has_prompt_logprobs", "_rest")

    def __init__(self) -> None:
        self._answers: dict[int, tuple[int, int, tuple[Any, ...]]] = {}
        self._rest: tuple[Any, Any] | None = None
        self._has_prompt_logprobs = False

    def cut(self, output: RequestOutput) -> list[Any]:
        """What is new: pieces of answers, times and other facts if they changed, the prompt's scores if it has them."""
        pieces = []
        for one in output.outputs:
            num_chars, num_tokens, before = self._answers.get(one.index, (0, 0, None))
            others = _others_of(one)
            is_settled = others == before
            if is_settled and one.num_tokens == num_tokens and len(one.text) == num_chars:
                continue
            self._answers[one.index] = (len(one.text), one.num_tokens, others)
            token_ids, logprobs = one.since(num_tokens)
            named = None if logprobs is None else _flat(logprobs)
            told = None if is_settled else list(others)
            pieces.append([one.index, one.text[num_chars:], token_ids, named, told])
        rest = (_times_of(output.metrics), _settled_of(output))
        news: list[Any] = [pieces, None if rest == self._rest else list(map(list, rest)), None]
        self._rest = rest
        if output.prompt_logprobs is not None and not self._has_prompt_logprobs:
            self._has_prompt_logprobs = True
            news[2] = _flat(output.prompt_logprobs)
        return news


class OutputAccumulator:
    """One request as it is known here. Mutable."""

    __slots__ = ("_answers", "_name", "_prompt", "_prompt_logprobs", "_rest", "_token_ids")

    def __init__(self, name: str, prompt: EnginePrompt) -> None:
        self._name = name
        self._prompt = prompt.text
        self._token_ids = list(prompt.token_ids)
        self._answers: dict[int, _Answer] = {}
        self._rest: tuple[RequestMetrics, dict[str, Any]] | None = None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def grow(self, news: list[Any]) -> RequestOutput:
        """The state after what `SentOutput.cut` returned at the other end."""
        pieces, rest, prompt_logprobs = news
        for index, text, token_ids, logprobs, others in pieces:
            answer = self._answers.get(index)
            if answer is None:
                answer = self._answers[index] = _Answer()
            answer.grow(text, token_ids, logprobs, others)
        if rest is not None:
            self._rest = RequestMetrics(*rest[0]), dict(zip(_SETTLED, rest[1], strict=True))
        if prompt_logprobs is not None:
            self._prompt_logprobs = _named(prompt_logprobs)
        assert self._rest is not None, "the first piece has all facts"
        metrics, settled = self._rest
        answers = self._answers
        return RequestOutput(
            request_id=self._name,
            prompt=self._prompt,
            prompt_token_ids=self._token_ids,
            outputs=[answers[index].state() for index in sorted(answers)],
            metrics=metrics,
            prompt_logprobs=self._prompt_logprobs,
            **settled,
        )


@dataclass(slots=True)
class _Answer:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def grow(self, text: str, token_ids: list[int], logprobs: list[Any] | None, others: list[Any] | None) -> None:
        self.text += text
        self.token_ids += token_ids
        if logprobs is not None:
            self.logprobs = [] if self.logprobs is None else self.logprobs
            self.logprobs += _named(logprobs)
        if others is not None:
            self.others = dict(zip(_OTHERS, others, strict=True))

    def state(self) -> CompletionOutput:
        return CompletionOutput(text=self.text, token_ids=self.token_ids, logprobs=self.logprobs, **self.others)


def _flat(logprobs: Sequence[dict[int, Logprob] | None]) -> list[Any]:
    return [
        one and {token_id: [own.logprob, own.rank, own.decoded_token] for token_id, own in one.items()}
        for one in logprobs
    ]


def _named(flat: list[Any]) -> list[Any]:
    return [one and {token_id: Logprob(*own) for token_id, own in one.items()} for one in flat]
