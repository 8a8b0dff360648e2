"""Parallel sampling (`n` > 1): several requests that share the keys and values of one prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.engine.requests.output import RequestMetrics, RequestOutput
from aethermind.engine.requests.request import Request, RequestState

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.scheduler import WaitingQueue

__all__ = ["SampleGroup", "SampleGroups", "answer_ids"]


class SampleGroup:
    """The requests for `n` answers to one prompt. The first is queued like any request; the others stay pending until
    they can fork its sequence or that of a sibling.
    """

    def __init__(self, request_id: str, requests: list[Request]) -> None:
        self.request_id = request_id
        self.requests = requests
        self.pending = requests[1:]
        """Requests that have not been started."""
        self._index_of = {request.request_id: index for index, request in enumerate(requests)}
        self._latest: dict[int, RequestOutput] = {}

    @property
    def is_finished(self) -> bool:
        """Whether all answers have ended."""
        return all(request.is_finished for request in self.requests)

    def start(self, cache: KVCache, num_slots: int, waiting: WaitingQueue, running: list[Request], now: float) -> int:
        """Start at most `num_slots` pending requests by forking a sibling's sequence; returns how many were started.

        If no sibling's prompt is computed they stay pending; if none is being computed either, one is queued.
        """
        num_started = 0
        while self.pending and num_started < num_slots:
            source = self._forkable()
            if source is None:
                if all(request.is_finished for request in self.requests if request not in self.pending):
                    waiting.add(self.pending.pop(0), now)
                break
            child = self.pending.pop(0)
            cache.fork(source.request_id, child.request_id)
            # The last token of the prompt is computed again: the first token is sampled from its logits.
            child.num_computed_tokens = child.num_prompt_tokens - 1
            cache.truncate(child.request_id, child.num_computed_tokens)
            child.state = RequestState.RUNNING
            child.admitted = now
            running.append(child)
            num_started += 1
        return num_started

    def merge(self, outputs: list[RequestOutput]) -> RequestOutput:
        """Merge new outputs of some requests into the output of the group."""
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

    def _forkable(self) -> Request | None:
        """A running request whose sequence holds the whole prompt."""
        return next(
            (
                request
                for request in self.requests
                if request.state is RequestState.RUNNING and request.num_computed_tokens >= request.num_prompt_tokens
            ),
            None,
        )


def answer_ids(request_id: str, num_answers: int) -> list[str]:
    """The ids of the requests of a group: the first has the id of the group."""
    return [request_id, *(f"{request_id}/{index}" for index in range(1, num_answers))]


class SampleGroups:
    """All open groups. Mutable."""

    def __init__(self) -> None:
        self._groups: dict[str, SampleGroup] = {}
        self._group_of: dict[str, SampleGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def has_pending(self) -> bool:
        """Whether any request waits to fork a sibling."""
        return any(group.pending for group in self._groups.values())

    def get(self, request_id: str) -> SampleGroup | None:
        """The group to which the request of this id belongs, None if it belongs to none."""
        return self._group_of.get(request_id)

    def open(self, request_id: str, requests: list[Request]) -> None:
        """Add a group."""
        self._groups[request_id] = group = SampleGroup(request_id, requests)
        self._group_of.update((request.request_id, group) for request in requests)

    def remove(self, group: SampleGroup) -> None:
        """Remove a group; without effect if it was removed before."""
        self._groups.pop(group.request_id, None)
        for request in group.requests:
            self._group_of.pop(request.request_id, None)

    def start(
        self, cache: KVCache, max_num_seqs: int, waiting: WaitingQueue, running: list[Request], now: float
    ) -> None:
        """Start pending requests of all groups while fewer than `max_num_seqs` run (see `SampleGroup.start`)."""
        for group in self._groups.values():
            group.start(cache, max_num_seqs - len(running), waiting, running, now)

    def partition(
        self, outputs: list[RequestOutput]
    ) -> tuple[list[RequestOutput], list[tuple[SampleGroup, list[RequestOutput]]]]:
        """The outputs of requests without a group, and those of each group."""
        alone = [output for output in outputs if output.request_id not in self._group_of]
        parts: dict[str, list[RequestOutput]] = {}
        for output in outputs:
            if (group := self._group_of.get(output.request_id)) is not None:
                parts.setdefault(group.request_id, []).append(output)
        return alone, [(self._groups[request_id], of_group) for request_id, of_group in parts.items()]
