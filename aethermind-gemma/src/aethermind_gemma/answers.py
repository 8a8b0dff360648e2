"""The answer format of Gemma's chat models: how they write tool calls."""

from __future__ import annotations

from aethermind.text import AnswerFormat

GEMMA = AnswerFormat(has_bare_calls=True)
"""Gemma has no tags for calls or reasoning; a call is the JSON that the prompt asks for."""
