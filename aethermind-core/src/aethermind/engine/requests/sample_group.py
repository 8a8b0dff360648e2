"""Parallel sampling (`n` > 1): several requests that share the keys and values of one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.cache.outcome import CacheOutcome
from aethermind.engine.requests.output import RequestMetrics
from aethermind.engine.requests.output_delta import OutputDelta, OutputReader, error_type_of
from aethermind.engine.requests.request import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.output_delta import OutputBuilder, OutputCursor
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.scheduler import WaitingQueue

__all__ = ["SampleGroup", "SampleGroups", "group_request_ids"]


class SampleGroup:
    """The requests for the `n` completions of one prompt; an `OutputSource` of all of them together.

    The first is queued like any request. The others are pending until they can fork its sequence, or that of another
    request of the group (a sibling).
    """

    def __init__(self, request_id: str, builders: list[OutputBuilder]) -> None:
        self.request_id = request_id
        self.requests = [builder.request for builder in builders]
        self.pending = self.requests[1:]
        """Requests that are neither queued nor started."""
        self.prompt = builders[0].prompt
        self.prompt_token_ids = builders[0].prompt_token_ids
        self.has_ended = False  # set by the engine when it ends the group
        self._builders = builders
        self._included: set[int] = set()
        self._reader: OutputReader | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all completions have ended."""
        return all(request.is_finished for request in self.requests)

    def include(self, builders: Iterable[OutputBuilder]) -> None:
        """Include these completions in the output of the group from now on."""
        self._included.update(builder.index for builder in builders)

    def start(self, cache: KVCache, num_slots: int, waiting: WaitingQueue, running: list[Request], now: float) -> int:
        """Start at most `num_slots` pending requests by forking a sibling's sequence; returns how many were started.

        They remain pending while a sibling still computes the prompt. If no sibling can be forked any more, one pending
        request is queued, to compute the prompt again: all siblings have ended, sliding windows have freed blocks that
        the last token of the prompt attends to, context shifts have dropped tokens of the prompt, or recurrent states
        have advanced past it.
        """
        num_started = 0
        while self.pending and num_started < num_slots:
            sibling = self._forkable(cache)
            if sibling is None:
                started = [request for request in self.requests if request not in self.pending]
                if all(request.is_finished or _holds_prompt(request) for request in started):
                    waiting.add(self.pending.pop(0), now)
                break
            # The last token of the prompt is computed again: the first output token is sampled from its logits.
            num_shared = sibling.num_prompt_tokens - 1
            if cache.fork(sibling.request_id, self.pending[0].request_id, num_shared) is not CacheOutcome.OK:
                break  # no state slot is free
            child = self.pending.pop(0)
            child.num_computed_tokens = num_shared
            child.state = RequestState.RUNNING
            child.admitted = now
            running.append(child)
            num_started += 1
        return num_started

    def delta(self, cursor: OutputCursor) -> OutputDelta:
        """Return the output of the included completions after `cursor`, and move the cursor to the end."""
        included = [self._builders[index] for index in sorted(self._included)]
        first = included[0]
        failed = next((builder.error for builder in included if builder.error is not None), None)
        return OutputDelta(
            self.request_id,
            [delta for builder in included if (delta := builder.completion_delta(cursor)) is not None],
            self.has_ended,
            self._aggregate_metrics([builder.metrics for builder in included]),
            first.request.num_prompt_tokens,
            first.request.num_cached_tokens,
            first.new_prompt_logprobs(cursor),
            None if failed is None else str(failed),
            None if failed is None else error_type_of(failed),
        )

    def output(self) -> RequestOutput:
        """Return the cumulative output (see `OutputSource`)."""
        self._reader = self._reader or OutputReader()
        return self._reader.read(self)

    def _aggregate_metrics(self, metrics: list[RequestMetrics]) -> RequestMetrics:
        first_token_times = [each.first_token_s for each in metrics if each.first_token_s is not None]
        end_times = [each.finished_s for each in metrics if each.finished_s is not None]
        return RequestMetrics(
            metrics[0].arrival_s,
            min(first_token_times, default=None),
            max(end_times, default=None) if self.has_ended else None,
            metrics[0].admitted_s,
            sum(each.num_preemptions for each in metrics),
            sum(each.num_draft_tokens for each in metrics),
            sum(each.num_accepted_tokens for each in metrics),
        )

    def _forkable(self, cache: KVCache) -> Request | None:
        """Return a running request that can be forked before the last token of the prompt; None if there is none.

        Its sequence has the prompt up to that token, all blocks that the token attends to, and the recurrent state
        before it.
        """
        return next(
            (
                request
                for request in self.requests
                if _holds_prompt(request)
                and request.num_dropped_tokens == 0
                and cache.may_truncate(request.request_id, request.num_prompt_tokens - 1)
            ),
            None,
        )


def _holds_prompt(request: Request) -> bool:
    """Whether a running request has computed the prompt, at least up to its last token.

    Each completion computes the last token itself, for its logits.
    """
    return request.state is RequestState.RUNNING and request.num_computed_tokens >= request.num_prompt_tokens - 1


def group_request_ids(request_id: str, num_completions: int) -> list[str]:
    """Return the ids of the requests of a group; the first has the id of the group."""
    return [request_id, *(f"{request_id}/{index}" for index in range(1, num_completions))]


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

    def open(self, request_id: str, builders: list[OutputBuilder]) -> None:
        """Add a group."""
        self._groups[request_id] = group = SampleGroup(request_id, builders)
        self._group_of.update((builder.request_id, group) for builder in builders)

    def remove(self, group: SampleGroup) -> None:
        """Remove a group; without effect if it was removed before."""
        self._groups.pop(group.request_id, None)
        for request in group.requests:
            self._group_of.pop(request.request_id, None)

    def start(
        self,
        cache: KVCache,
        num_slots: Callable[[Request], int],
        waiting: WaitingQueue,
        running: list[Request],
        now: float,
    ) -> None:
        """Start pending requests of all groups (see `SampleGroup.start`); `num_slots` returns how many more may run."""
        for group in self._groups.values():
            if group.pending:
                group.start(cache, num_slots(group.pending[0]), waiting, running, now)

    def partition(
        self, builders: list[OutputBuilder]
    ) -> tuple[list[OutputBuilder], list[tuple[SampleGroup, list[OutputBuilder]]]]:
        """Split builders into those of requests without a group and those of each group."""
        ungrouped = [builder for builder in builders if builder.request_id not in self._group_of]
        members: dict[str, list[OutputBuilder]] = {}
        for builder in builders:
            if (group := self._group_of.get(builder.request_id)) is not None:
                members.setdefault(group.request_id, []).append(builder)
        return ungrouped, [
            (self._groups[request_id], builders_of_group) for request_id, builders_of_group in members.items()
        ]
