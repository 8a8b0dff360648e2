"""Reasoning and tool call formats of Qwen's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat
from aethermind.text.answer_format import HERMES_CALLS

QWEN2 = AnswerFormat(tool_calls=(HERMES_CALLS,))
QWEN3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))
"""Qwen3 writes JSON between the tags of a call; Qwen3-Coder and Qwen3.5 write XML with a tag for each parameter."""
