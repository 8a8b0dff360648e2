"""The answer format of GLM's chat models: how they mark reasoning and tool calls."""

from __future__ import annotations

from aethermind.text import AnswerFormat
from aethermind.text.answer_format import HERMES_CALLS

__all__ = ["GLM4"]

GLM4 = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))
"""GLM-Z1 and GLM-4.5 write their reasoning between these tags; calls of GLM-4.5 have tags for keys and values."""
