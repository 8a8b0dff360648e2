"""Formats of answers of Phi's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["PHI3"]

PHI3 = AnswerFormat(tool_call=("<|tool_call|>", "<|/tool_call|>"))
"""Phi-4-mini writes calls between these tags; Phi-4-reasoning's tags of reasoning are in its vocabulary."""
