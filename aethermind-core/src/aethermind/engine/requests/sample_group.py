"""Several answers to one prompt: requests of their own that share the prompt's keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.engine.requests.output import RequestMetrics, RequestOutput
from aethermind.engine.requests.request import Request, RequestState

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.waiting_queue import WaitingQueue

__all__ = ["SampleGroup", "SampleGroups", "answer_ids"]


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


def answer_ids(request_id: str, num_answers: int) -> list[str]:
    """The ids of the requests that give the answers: the first has the id that was asked for."""
    return [request_id, *(f"{request_id}/{index}" for index in range(1, num_answers))]


class SampleGroups:
    """Mutable: every group from its first step on until all its answers have ended."""

    def __init__(self) -> None:
        self._groups: dict[str, SampleGroup] = {}
        self._of_answer: dict[str, SampleGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def has_pending(self) -> bool:
        """Whether any answer waits to fork a sibling."""
        return any(group.pending for group in self._groups.values())

    def get(self, request_id: str) -> SampleGroup | None:
        """The group that an answer of this id belongs to: the first has that of the group."""
        return self._of_answer.get(request_id)

    def open(self, request_id: str, requests: list[Request]) -> None:
        """Begin a group."""
        self._groups[request_id] = group = SampleGroup(request_id, requests)
        self._of_answer.update((request.request_id, group) for request in requests)

    def forget(self, group: SampleGroup) -> None:
        """End it here; nothing where that was done."""
        self._groups.pop(group.request_id, None)
        for request in group.requests:
            self._of_answer.pop(request.request_id, None)

    def start(
        self, cache: KVCache, max_num_seqs: int, waiting: WaitingQueue, running: list[Request], now: float
    ) -> None:
        """Let pending answers of all groups run, as far as there are seats (see `SampleGroup.start`)."""
        for group in self._groups.values():
            group.start(cache, max_num_seqs - len(running), waiting, running, now)

    def sort_out(
        self, outputs: list[RequestOutput]
    ) -> tuple[list[RequestOutput], list[tuple[SampleGroup, list[RequestOutput]]]]:
        """The outputs that belong to no group, and those of each group together."""
        alone = [output for output in outputs if output.request_id not in self._of_answer]
        parts: dict[str, list[RequestOutput]] = {}
        for output in outputs:
            if (group := self._of_answer.get(output.request_id)) is not None:
                parts.setdefault(group.request_id, []).append(output)
        return alone, [(self._groups[request_id], of_group) for request_id, of_group in parts.items()]
