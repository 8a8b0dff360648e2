"""Several answers to one prompt: requests of their own that share the prompt's keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.engine.requests.output import RequestMetrics, RequestOutput
from aethermind.engine.requests.request import Request, RequestState

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.scheduling.waiting_queue import WaitingQueue

__all__ = ["SampleGroup"]


class SampleGroup:
    """The answers to one prompt. The first is queued like any request; the others wait here until they can fork its
    sequence, or that of a sibling.
    """

    def __init__(self, request_id: str, requests: list[Request]) -> None:
        self.request_id = request_id
        self.requests = requests
        self.pending = requests[1:]
        """Those that have not been started."""
        self._index_of = {request.request_id: index for index, request in enumerate(requests)}
        self._latest: dict[int, RequestOutput] = {}

    @property
    def is_finished(self) -> bool:
        """Whether all answers have ended."""
        return all(request.is_finished for request in self.requests)

    def start(self, cache: KVCache, num_seats: int, waiting: WaitingQueue, running: list[Request], now: float) -> int:
        """Let pending answers run, at most `num_seats`, on a copy of a sibling's prompt; returns how many.

        Without a sibling whose prompt is computed they wait for one, and where none is under way they queue.
        """
        num_started = 0
        while self.pending and num_started < num_seats:
            source = self._source()
            if source is None:
                if all(request.is_finished for request in self.requests if request not in self.pending):
                    waiting.add(self.pending.pop(0), now)
                break
            child = self.pending.pop(0)
            cache.fork(source.request_id, child.request_id)
            # The last token of the prompt is computed again: its logits are what the first token comes from.
            child.num_computed_tokens = child.num_prompt_tokens - 1
            cache.truncate(child.request_id, child.num_computed_tokens)
            child.state = RequestState.RUNNING
            child.admitted = now
            running.append(child)
            num_started += 1
        return num_started

    def merge(self, outputs: list[RequestOutput]) -> RequestOutput:
        """The answers as they are, after these outputs of some of them."""
        for output in outputs:
            self._latest[self._index_of[output.request_id]] = output
        known = [self._latest[index] for index in sorted(self._latest)]
        completions = [one.outputs[0] for one in known]
        firsts = [time for one in known if (time := one.metrics.first_token_s) is not None]
        ends = [time for one in known if (time := one.metrics.finished_s) is not None]
        is_finished = self.is_finished
        metrics = RequestMetrics(
            known[0].metrics.arrival_s,
            min(firsts, default=None),
            max(ends, default=None) if is_finished else None,
            known[0].metrics.admitted_s,
            sum(one.metrics.num_preemptions for one in known),
            sum(one.metrics.num_draft_tokens for one in known),
            sum(one.metrics.num_accepted_tokens for one in known),
        )
        failed = next((one for one in known if one.error is not None), None)
        return replace(
            known[0],
            request_id=self.request_id,
            outputs=completions,
            finished=is_finished,
            metrics=metrics,
            error=None if failed is None else failed.error,
            error_type=None if failed is None else failed.error_type,
        )

    def _source(self) -> Request | None:
        """An answer whose sequence holds the whole prompt."""
        return next(
            (
                request
                for request in self.requests
                if request.state is RequestState.RUNNING and request.num_computed_tokens >= request.num_prompt_tokens
            ),
            None,
        )
