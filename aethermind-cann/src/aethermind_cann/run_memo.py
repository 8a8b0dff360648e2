"""Per-run memoisation: what several steps derive from the same value (lengths on the host, cache rows, cosines) is
computed once.

Every layer of a decoder needs such results. The executable gives each value of a run one tensor object, which
identifies the value, and clears the cache when the run is submitted.

Reads of values on the host are recorded, in `HostQueries`: a captured run may be replayed where the reads would give
the same answers. `decided` is for branches of a step, `renewed` for numbers that an operator takes from the host and
that can be updated in a graph; a run that uses `host_list` cannot be replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

__all__ = ["HostQueries", "Hosted", "decided", "host_list", "once", "remembering", "renewed"]

T = TypeVar("T")
D = TypeVar("D", bound=Hashable)
Numbers = dict[str, list[int]]
Hosted = Mapping[int, tuple[torch.Tensor, list[Any]]]
"""Values with their elements on the host, by the tensor's identity."""
_of_thread = threading.local()


class HostQueries:
    """The reads of values on the host that the steps of one size make."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether a step reads elements for arbitrary use, so that runs cannot be replayed."""
        self._values: dict[int, torch.Tensor] = {}
        self._decisions: dict[tuple[int, Callable[[list[Any]], Hashable]], None] = {}
        self._renewals: dict[tuple[int, ...], Callable[..., Numbers]] = {}

    @property
    def count(self) -> int:
        """The number of recorded queries."""
        return len(self._decisions) + len(self._renewals)

    def note_decision(self, value: torch.Tensor, decide: Callable[[list[Any]], Hashable]) -> None:
        self._values[id(value)] = value
        self._decisions[id(value), decide] = None

    def note_renewal(self, values: tuple[torch.Tensor, ...], compute: Callable[..., Numbers]) -> None:
        self._values |= {id(value): value for value in values}
        self._renewals[tuple(map(id, values))] = compute
        self.is_open |= len(self._renewals) > 1

    @property
    def has_renewal(self) -> bool:
        """Whether a graph has numbers that must be updated before each launch."""
        return bool(self._renewals)

    def read(self) -> Hosted:
        """Read all queried values; synchronises the stream."""
        return {key: (value, value.tolist()) for key, value in self._values.items()}

    def answers(self, hosted: Hosted) -> tuple[Hashable, ...]:
        """The decisions of the steps for these values."""
        return tuple(decide(hosted[key][1]) for key, decide in self._decisions)

    def numbers(self, hosted: Hosted) -> Numbers:
        """The numbers to update in a graph."""
        ((keys, compute),) = self._renewals.items()
        return compute(*(hosted[key][1] for key in keys))


@contextmanager
def remembering(queries: HostQueries | None = None, hosted: Hosted | None = None) -> Iterator[None]:
    """Memoise within this block and thread, and record host queries; `hosted` are values already read."""
    _of_thread.memo = {("host", key): found for key, found in (hosted or {}).items()}
    _of_thread.queries = HostQueries() if queries is None else queries
    try:
        yield
    finally:
        del _of_thread.memo, _of_thread.queries


def once(what: object, value: torch.Tensor, compute: Callable[[], T]) -> T:
    """Return `compute()`, memoised as `what` of this value."""
    memo: dict[Any, tuple[torch.Tensor, T]] | None = getattr(_of_thread, "memo", None)
    if memo is None:
        return compute()
    key = (what, id(value))
    if key not in memo:
        memo[key] = (value, compute())  # keeps the tensor, so that its id is not reused
    return memo[key][1]


def host_list(value: torch.Tensor) -> list[Any]:
    """The elements of a small tensor; synchronises the stream once per run."""
    if hasattr(_of_thread, "queries"):
        _of_thread.queries.is_open = True
    return _elements(value)


def decided(value: torch.Tensor, decide: Callable[[list[Any]], D]) -> D:
    """Return `decide` of the value's elements; it must be the same function at each call and cover all that depends on
    them.
    """
    if hasattr(_of_thread, "queries"):
        _of_thread.queries.note_decision(value, decide)
    return once(decide, value, lambda: decide(_elements(value)))


def renewed(values: tuple[torch.Tensor, ...], compute: Callable[..., Numbers]) -> Numbers:
    """Return `compute` of the values' elements: keyword arguments of a torch_npu operator."""
    if hasattr(_of_thread, "queries"):
        _of_thread.queries.note_renewal(values, compute)
    return once(compute, values[0], lambda: compute(*map(_elements, values)))


def _elements(value: torch.Tensor) -> list[Any]:
    found: list[Any] = once("host", value, value.tolist)
    return found
