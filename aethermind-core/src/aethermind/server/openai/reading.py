"""A chat's answer read while it grows: thoughts, text and calls, and the log probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aethermind.server.openai.tools import ForcedCall
from aethermind.text.answer_parser import AnswerParser, Content, Reasoning, ToolCall

if TYPE_CHECKING:
    from aethermind.engine.requests.output import Logprob
    from aethermind.server.openai.chat import ChatRequest
    from aethermind.text.answer_parser import AnswerFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerReader", "Piece", "token_logprobs"]

Piece = Content | Reasoning | ToolCall


class AnswerReader:
    """Reads one answer to `request`, of a model that writes in `format` behind `prompt`. Mutable.

    What the request demands of the text is demanded from its first character on, so it has no thoughts.
    """

    def __init__(self, request: ChatRequest, format: AnswerFormat, prompt: str) -> None:
        self._reader = ForcedCall() if request.offered and request.is_call_forced else _parser(request, format, prompt)
        self._most_calls = 1 if request.parallel_tool_calls is False else None
        self._num_calls = 0

    def read(self, text: str, *, is_last: bool) -> list[Piece]:
        """The pieces that more of its text brings."""
        pieces = []
        for piece in (*self._reader.push(text), *(self._reader.finish() if is_last else ())):
            if isinstance(piece, ToolCall):
                if self._num_calls == self._most_calls:
                    continue
                self._num_calls += 1
            pieces.append(piece)
        return pieces

    def reason(self, finish_reason: str | None) -> str | None:
        """Why it ended, in OpenAI's words."""
        return "tool_calls" if finish_reason == "stop" and self._num_calls else finish_reason


def _parser(request: ChatRequest, format: AnswerFormat, prompt: str) -> AnswerParser:
    functions = [tool.function.name for tool in request.offered]
    if not functions:
        format = replace(format, tool_call=None)
    is_thinking = format.is_thinking(prompt) and not request.has_demand
    return AnswerParser(format, is_thinking=is_thinking, functions=functions)


def token_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[dict[int, Logprob]] | None, num_top: int
) -> list[dict[str, Any]] | None:
    """Each token with its log probability and the `num_top` likeliest in its place; None where none were asked for."""
    if logprobs is None:
        return None
    told = []
    for token_id, alternatives in zip(token_ids, logprobs, strict=True):
        top = [_token(tokenizer, other, one) for other, one in alternatives.items() if one.rank <= num_top]
        told.append({**_token(tokenizer, token_id, alternatives[token_id]), "top_logprobs": top})
    return told


def _token(tokenizer: Tokenizer, token_id: int, one: Logprob) -> dict[str, Any]:
    """A token may be a part of a character, which only its bytes can tell: those of some tokens are put together."""
    raw = tokenizer.token_bytes(token_id)
    told = one.decoded_token.encode() if raw is None else raw
    return {"token": one.decoded_token, "logprob": one.logprob, "bytes": list(told)}
