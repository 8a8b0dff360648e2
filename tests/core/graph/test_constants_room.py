"""Weights that do not fit in the memory that is free: refused before one is read."""

from __future__ import annotations

import pytest
from tests.core.graph.test_constants import PackingKernel, Source, linear_plan, numbers, store_of

from aethermind.dispatch import Dispatcher
from aethermind.errors import OutOfMemoryError
from aethermind.hal.builtin_backends import NumpyBackend


@pytest.mark.parametrize(("free", "fits"), [(48 * 4 - 1, False), (48 * 4, True), (None, True)])
def test_weights_that_do_not_fit_are_refused_before_one_is_read(
    free: int | None, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, source = NumpyBackend(), Source(numbers())
    monkeypatch.setattr(backend, "free_memory", lambda: free)
    store, plan = store_of(source, backend=backend), linear_plan(Dispatcher([PackingKernel().kernel]))
    if not fits:
        with pytest.raises(OutOfMemoryError, match="Choose a smaller model"):
            store.load(plan)
        assert source.reads == []
        return
    store.load(plan)
    monkeypatch.setattr(backend, "free_memory", lambda: 0)
    store.load(plan)  # which has all that it needs
