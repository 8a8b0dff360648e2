"""Tool call format of Phi's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat
from aethermind.text.answer_format import PHI_CALLS

__all__ = ["PHI3"]

PHI3 = AnswerFormat(tool_calls=(PHI_CALLS,))
"""The format of Phi-4-mini's tool calls. The reasoning tags of Phi-4-reasoning are found in its vocabulary."""
