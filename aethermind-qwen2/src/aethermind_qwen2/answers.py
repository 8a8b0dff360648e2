"""Reasoning and tool call formats of Qwen's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

QWEN2 = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"))
QWEN3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))
QWEN3_5 = AnswerFormat(reasoning=("<think>", "</think>"))
"""Qwen3.5 writes tool calls as XML with a tag for each parameter. They are not parsed, but returned as text."""
