"""What the steps of one run compute from the same value is computed once: lengths on the host, rows of slots, cosines.

A decoder asks for such things in every layer. The executable gives each value of a run one tensor object, so that the
object says which value is meant, and forgets everything when the run was submitted.

What steps learn of the host is noted as well, in `Questions`: a run that was captured may be repeated where it would
learn the same. `decided` is for what steps do one way or another, `renewed` for numbers that an operator takes from the
host and a graph can be told anew; who asks by `host_list` cannot be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

__all__ = ["Hosted", "Questions", "decided", "host_list", "once", "remembering", "renewed"]

T = TypeVar("T")
D = TypeVar("D", bound=Hashable)
Numbers = dict[str, list[int]]
Hosted = Mapping[int, tuple[torch.Tensor, list[Any]]]
"""Values with their elements, by the identity of the tensor."""
_of_thread = threading.local()


class Questions:
    """What the steps of one size ask about the values of a run."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether somebody asked for elements, to do with them whatever it is."""
        self._values: dict[int, torch.Tensor] = {}
        self._decisions: dict[tuple[int, Callable[[list[Any]], Hashable]], None] = {}
        self._renewals: dict[tuple[int, ...], Callable[..., Numbers]] = {}

    @property
    def count(self) -> int:
        """How many there are."""
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
        """Whether there are numbers that a graph has to be told anew for each run."""
        return bool(self._renewals)

    def read(self) -> Hosted:
        """All values that were asked about, as they are now: the stream is waited for."""
        return {key: (value, value.tolist()) for key, value in self._values.items()}

    def answers(self, hosted: Hosted) -> tuple[Hashable, ...]:
        """What the steps will decide."""
        return tuple(decide(hosted[key][1]) for key, decide in self._decisions)

    def numbers(self, hosted: Hosted) -> Numbers:
        """What a graph has to be told."""
        ((keys, compute),) = self._renewals.items()
        return compute(*(hosted[key][1] for key in keys))


@contextmanager
def remembering(questions: Questions | None = None, hosted: Hosted | None = None) -> Iterator[None]:
    """Remember until the end of this block, in this thread, and note what is asked; `hosted` is known beforehand."""
    _of_thread.memo = {("host", key): found for key, found in (hosted or {}).items()}
    _of_thread.questions = Questions() if questions is None else questions
    try:
        yield
    finally:
        del _of_thread.memo, _of_thread.questions


def once(what: object, value: torch.Tensor, compute: Callable[[], T]) -> T:
    """`compute()`, or what it returned when it was asked for `what` of this value before."""
    memo: dict[Any, tuple[torch.Tensor, T]] | None = getattr(_of_thread, "memo", None)
    if memo is None:
        return compute()
    key = (what, id(value))
    if key not in memo:
        memo[key] = (value, compute())  # the tensor is kept, so that no other one gets its id
    return memo[key][1]


def host_list(value: torch.Tensor) -> list[Any]:
    """The elements of a small tensor on the host: the stream is waited for, once a run."""
    if hasattr(_of_thread, "questions"):
        _of_thread.questions.is_open = True
    return _elements(value)


def decided(value: torch.Tensor, decide: Callable[[list[Any]], D]) -> D:
    """`decide` of the value's elements. It is one function, whoever asks, and says all that depends on them."""
    if hasattr(_of_thread, "questions"):
        _of_thread.questions.note_decision(value, decide)
    return once(decide, value, lambda: decide(_elements(value)))


def renewed(values: tuple[torch.Tensor, ...], compute: Callable[..., Numbers]) -> Numbers:
    """`compute` of the values' elements: arguments of an operator of torch_npu, by their names."""
    if hasattr(_of_thread, "questions"):
        _of_thread.questions.note_renewal(values, compute)
    return once(compute, values[0], lambda: compute(*map(_elements, values)))


def _elements(value: torch.Tensor) -> list[Any]:
    found: list[Any] = once("host", value, value.tolist)
    return found
