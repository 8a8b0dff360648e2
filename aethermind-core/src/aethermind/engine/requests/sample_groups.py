"""The groups of answers that are open, and which of them an answer belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.engine.requests.sample_group import SampleGroup

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.requests.output import RequestOutput
    from aethermind.engine.requests.request import Request
    from aethermind.engine.scheduling.waiting_queue import WaitingQueue

__all__ = ["SampleGroups", "answer_ids"]


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
