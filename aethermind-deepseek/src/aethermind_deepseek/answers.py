"""The answer format of DeepSeek's chat models: how they mark reasoning and tool calls."""

from __future__ import annotations

from aethermind.text import AnswerFormat
from aethermind.text.answer_format import DEEPSEEK_CALLS

__all__ = ["DEEPSEEK_V3"]

DEEPSEEK_V3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(DEEPSEEK_CALLS,))
"""DeepSeek R1 and V3.1 write their reasoning between these tags."""
