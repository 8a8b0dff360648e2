"""Per-run memoisation: results that several kernel calls derive from the same value (lengths on the host, row indices
of KV cache slots, cosines) are computed once.

Every layer of a decoder needs such results. The executable gives each value of a run one tensor object, which
identifies the value, and clears the memo when the run is submitted.

Copies of device values to the host are recorded, in `HostQueries`: a captured run may be replayed where the reads
would give the same answers. `host_decision` is for branches of a kernel, `updatable_arguments` for numbers that
an operator takes from the host and that can be updated in a graph; a run that uses `host_list` cannot be replayed.
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
"""Values with their elements on the host, by the tensor's identity."""
_thread = threading.local()


class HostQueries:
    """The copies of device values to the host that kernels make in runs with the same dynamic sizes."""

    def __init__(self) -> None:
        self.blocks_replay = False
        """Whether a kernel reads elements for arbitrary use, so that runs cannot be replayed."""
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
        """The decisions of the kernels for these values."""
        return tuple(decide(host_values[key][1]) for key, decide in self._decisions)

    def updates(self, host_values: HostValues) -> UpdatedArguments:
        """The arguments to update in a graph."""
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
    """Return `compute()`, memoised by `what` and this value."""
    memo: dict[Any, tuple[torch.Tensor, T]] | None = getattr(_thread, "memo", None)
    if memo is None:
        return compute()
    key = (what, id(value))
    if key not in memo:
        memo[key] = (value, compute())  # keeps the tensor, so that its id is not reused
    return memo[key][1]


def host_list(value: torch.Tensor) -> list[Any]:
    """The elements of a small tensor; synchronises the stream once per run."""
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
