"""A source of output whose answer has a word for each token."""

from __future__ import annotations

from aethermind.engine.requests.output import CompletionOutput, RequestMetrics, RequestOutput
from aethermind.engine.requests.output_delta import CompletionDelta, OutputCursor, OutputDelta, OutputReader

__all__ = ["WordSource", "words"]


class WordSource:
    """An `OutputSource` with one answer, which `grow` lengthens and `end` ends. Mutable."""

    def __init__(self, name: str = "name") -> None:
        self.request_id = name
        self.prompt: str | None = "Once"
        self.prompt_token_ids = [3]
        self.has_ended = False
        self.num_tokens = 0
        self._reader = OutputReader()

    def grow(self, num_tokens: int = 1) -> WordSource:
        self.num_tokens += num_tokens
        return self

    def end(self, num_tokens: int = 1) -> WordSource:
        self.has_ended = True
        return self.grow(num_tokens)

    def delta(self, cursor: OutputCursor) -> OutputDelta:
        _, begin, _ = cursor.positions.get(0, (0, 0, False))
        cursor.positions[0] = (0, self.num_tokens, self.has_ended)
        token_ids = list(range(begin, self.num_tokens))
        reason = "stop" if self.has_ended else None
        completion = CompletionDelta(0, "word " * len(token_ids), token_ids, None, self.num_tokens, reason)
        return OutputDelta(self.request_id, [completion], self.has_ended, RequestMetrics(0.0, None, None), 1)

    def output(self) -> RequestOutput:
        return self._reader.read(self)


def words(num_tokens: int, *, finished: bool = False, name: str = "name") -> RequestOutput:
    """The cumulative output of a source with so many tokens."""
    reason = "stop" if finished else None
    answer = CompletionOutput(0, "word " * num_tokens, list(range(num_tokens)), None, reason, None)
    return RequestOutput(name, "Once", [3], [answer], finished, RequestMetrics(0.0, None, None))
