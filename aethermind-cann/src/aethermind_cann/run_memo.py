"""Memoisation within a run: results that the kernels of all layers derive from the same value (lengths on the host, row
indices of KV cache slots, cosines) are computed once.

The executable makes one tensor object for each value of a run, so the object identifies the value. The memo is cleared
when the run was submitted.

`HostQueries` records the device values that kernels read on the host, because a captured graph may be replayed only
where these reads have the same results. A kernel reads by `host_decision` for its branches, by `updatable_arguments`
for host arguments of an operator that can be updated in a graph, and else by `host_list`; a run with the last one
cannot be replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

__all__ = ["HostQueries", "HostValues", "host_decision", "host_list", "memoised", "memoised_run", "updatable_arguments"]

T = TypeVar("T")
D = TypeVar("D", bound=Hashable)
UpdatedArguments = dict[str, list[int]]
HostValues = Mapping[int, tuple[torch.Tensor, list[Any]]]
"""Tensors with their elements on the host, by the id of the tensor object."""
_thread = threading.local()


class HostQueries:
    """The device values that kernels read on the host in runs of the same sizes, and what they compute from them."""

    def __init__(self) -> None:
        self.blocks_replay = False
        """Whether a kernel reads elements by `host_list`, so that runs cannot be replayed."""
        self._values: dict[int, torch.Tensor] = {}
        self._decisions: dict[tuple[int, Callable[[list[Any]], Hashable]], None] = {}
        self._updates: dict[tuple[int, ...], Callable[..., UpdatedArguments]] = {}

    @property
    def count(self) -> int:
        """The number of recorded queries."""
        return len(self._decisions) + len(self._updates)

    def record_decision(self, value: torch.Tensor, decide: Callable[[list[Any]], Hashable]) -> None:
        self._values[id(value)] = value
        self._decisions[id(value), decide] = None

    def record_update(self, values: tuple[torch.Tensor, ...], compute: Callable[..., UpdatedArguments]) -> None:
        self._values |= {id(value): value for value in values}
        self._updates[tuple(map(id, values))] = compute
        self.blocks_replay |= len(self._updates) > 1

    @property
    def has_updates(self) -> bool:
        """Whether a graph has arguments that must be updated before each launch."""
        return bool(self._updates)

    def read(self) -> HostValues:
        """Read all queried values; synchronises the stream."""
        return {key: (value, value.tolist()) for key, value in self._values.items()}

    def decisions(self, host_values: HostValues) -> tuple[Hashable, ...]:
        """Return the decisions of the kernels for these values."""
        return tuple(decide(host_values[key][1]) for key, decide in self._decisions)

    def updates(self, host_values: HostValues) -> UpdatedArguments:
        """Return the arguments to update in a graph."""
        ((keys, compute),) = self._updates.items()
        return compute(*(host_values[key][1] for key in keys))


@contextmanager
def memoised_run(queries: HostQueries | None = None, host_values: HostValues | None = None) -> Iterator[None]:
    """Memoise within this block and thread, and record host queries; `host_values` are values already read."""
    _thread.memo = {("host", key): found for key, found in (host_values or {}).items()}
    _thread.queries = HostQueries() if queries is None else queries
    try:
        yield
    finally:
        del _thread.memo, _thread.queries


def memoised(what: object, value: torch.Tensor, compute: Callable[[], T]) -> T:
    """Return `compute()`, memoised within the run by `what` and this value."""
    memo: dict[Any, tuple[torch.Tensor, T]] | None = getattr(_thread, "memo", None)
    if memo is None:
        return compute()
    key = (what, id(value))
    if key not in memo:
        memo[key] = (value, compute())  # keeps the tensor, so that its id is not reused
    return memo[key][1]


def host_list(value: torch.Tensor) -> list[Any]:
    """Return the elements of a small tensor; the first call in a run synchronises the stream."""
    if hasattr(_thread, "queries"):
        _thread.queries.blocks_replay = True
    return _elements(value)


def host_decision(value: torch.Tensor, decide: Callable[[list[Any]], D]) -> D:
    """Return `decide` of the value's elements; pass the same function object at each call.

    A kernel may depend on the elements through this result only, because a graph is replayed where results are equal.
    """
    if hasattr(_thread, "queries"):
        _thread.queries.record_decision(value, decide)
    return memoised(decide, value, lambda: decide(_elements(value)))


def updatable_arguments(values: tuple[torch.Tensor, ...], compute: Callable[..., UpdatedArguments]) -> UpdatedArguments:
    """Return `compute` of the values' elements: keyword arguments of a torch_npu operator."""
    if hasattr(_thread, "queries"):
        _thread.queries.record_update(values, compute)
    return memoised(compute, values[0], lambda: compute(*map(_elements, values)))


def _elements(value: torch.Tensor) -> list[Any]:
    found: list[Any] = memoised("host", value, value.tolist)
    return found
