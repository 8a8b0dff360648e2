"""The answer format of DeepSeek's chat models: how they mark reasoning."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["DEEPSEEK_V3"]

DEEPSEEK_V3 = AnswerFormat(reasoning=("<think>", "</think>"))
"""DeepSeek R1 and V3.1 write their reasoning between these tags."""
