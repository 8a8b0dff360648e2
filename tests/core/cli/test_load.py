"""Progress bars of loading: on terminals, after a delay."""

from __future__ import annotations

import io
import sys

import pytest

from aethermind.cli import progress as progress_module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "patience_s", "is_drawn"),
    [(Terminal(), 0.0, True), (Terminal(), 3600.0, False), (io.StringIO(), 0.0, False)],
    ids=["slow on a terminal", "quick on a terminal", "slow in a pipe"],
)
def test_bar_is_drawn_on_terminals_when_loading_takes_long(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, patience_s: float, is_drawn: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "SHOW_AFTER_S", patience_s)
    monkeypatch.setenv("TERM", "xterm")
    with progress_module.LoadProgress() as progress:
        for done in range(1, 4):
            progress(done, 3)
    assert ("Loading" in stream.getvalue()) == is_drawn


def test_bars_of_several_models_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "SHOW_AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with progress_module.LoadProgress("First") as first, progress_module.LoadProgress("Second") as second:
        for progress in (first, second):
            progress(1, 2)
            progress(2, 2)
        first(1, 1)  # a variant of the graph, compiled later, is nothing to wait for
    assert stream.getvalue().index("First") < stream.getvalue().index("Second")
    assert stream.getvalue().rindex("First") < stream.getvalue().index("Second")
