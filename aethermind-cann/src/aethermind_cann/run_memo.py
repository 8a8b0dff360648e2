"""What the steps of one run compute from the same value is computed once: lengths on the host, rows of slots, cosines.

A decoder asks for such things in every layer. The executable gives each value of a run one tensor object, so that the
object says which value is meant, and forgets everything when the run was submitted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

__all__ = ["host_list", "once", "remembering"]

T = TypeVar("T")
_of_thread = threading.local()


@contextmanager
def remembering() -> Iterator[None]:
    """Remember until the end of this block, in this thread."""
    _of_thread.memo = {}
    try:
        yield
    finally:
        del _of_thread.memo


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
    found: list[Any] = once("host", value, value.tolist)
    return found
