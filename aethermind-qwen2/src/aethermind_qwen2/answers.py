"""How Qwen's chat models mark what is not for the user."""

from __future__ import annotations

from aethermind.text import AnswerFormat

QWEN2 = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"))
QWEN3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))
