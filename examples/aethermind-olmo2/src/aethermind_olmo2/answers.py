"""The reasoning format of OLMo's models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["OLMO2"]

OLMO2 = AnswerFormat(reasoning=("<think>", "</think>"))
