"""Progress of prefill, on a terminal only."""

from __future__ import annotations

import io
import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from aethermind.cli import progress as progress_module
from aethermind.cli.progress import PrefillProgress, describe_prefill


class Terminal(io.StringIO):
    """A terminal that says when the first line was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.is_drawn = Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "Reading" in text:
            self.is_drawn.set()
        return super().write(text)


def request(num_computed_tokens: int, num_prompt_tokens: int) -> Any:
    return SimpleNamespace(num_computed_tokens=num_computed_tokens, num_prompt_tokens=num_prompt_tokens)


def llm_with(*running: Any) -> Any:
    return SimpleNamespace(engine=SimpleNamespace(running=list(running)))


def test_the_text_of_the_prefill_progress() -> None:
    assert describe_prefill([]) == "Reading the prompt"
    assert describe_prefill([request(5120, 20000)]) == "Reading the prompt: 5,120 of 20,000 tokens"
    assert describe_prefill([request(7, 4), request(0, 4)]) == "Reading the prompt: 4 of 8 tokens"


def test_the_line_is_drawn_after_a_delay_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_module, "SHOW_AFTER_S", 0.0)
    with PrefillProgress(llm_with(request(512, 1024))) as progress:
        assert terminal.is_drawn.wait(60)
        progress.stop()
        drawn = terminal.getvalue()
        assert "512 of 1,024 tokens" in drawn
        assert drawn.endswith(("\x1b[2K", "\x1b[?25h")), "the line is erased, and the cursor is there again"
        progress.stop()
    assert terminal.getvalue() == drawn, "nothing is drawn once it has stopped"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_nothing_is_drawn_without_a_capable_terminal(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    stream = Terminal() if term == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(progress_module, "SHOW_AFTER_S", 0.0)
    with PrefillProgress(llm_with(request(512, 1024))):
        pass
    assert stream.getvalue() == ""


def test_a_fast_answer_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_module, "SHOW_AFTER_S", 600.0)
    with PrefillProgress(llm_with(request(1, 2))) as progress:
        progress.stop()
    assert terminal.getvalue() == ""
