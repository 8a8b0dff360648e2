"""Tool call format of Phi's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["PHI3"]

PHI3 = AnswerFormat(tool_call=("<|tool_call|>", "<|/tool_call|>"))
"""The format of Phi-4-mini's tool calls. The reasoning tags of Phi-4-reasoning are found in its vocabulary."""
