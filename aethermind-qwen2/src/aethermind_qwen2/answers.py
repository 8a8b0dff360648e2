"""Reasoning and tool call formats of Qwen's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

QWEN2 = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"))
QWEN3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))
QWEN3_5 = AnswerFormat(reasoning=("<think>", "</think>"))
"""Calls of Qwen3.5 are XML with a tag for each parameter, which is returned as text."""
