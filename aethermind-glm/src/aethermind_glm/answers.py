"""The answer format of GLM's chat models: how they mark reasoning."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["GLM4"]

GLM4 = AnswerFormat(reasoning=("<think>", "</think>"))
"""GLM-Z1 and GLM-4.5 write their reasoning between these tags."""
