"""Reasoning and tool call formats of these families' chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat
from aethermind.text.answer_format import HERMES_CALLS, MISTRAL_CALLS, PHI_CALLS, PYTHON_TAG_CALLS

LLAMA = AnswerFormat(tool_calls=(HERMES_CALLS, PYTHON_TAG_CALLS), has_bare_calls=True)
"""Llama 3 writes calls without tags, in JSON or, since 3.2, in Python's syntax; Hermes writes tags around JSON."""

MISTRAL = AnswerFormat(tool_calls=(HERMES_CALLS, MISTRAL_CALLS), has_bare_calls=True)

SMOLLM3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_calls=(HERMES_CALLS,))

OLMO3 = AnswerFormat(reasoning=("<think>", "</think>"))
"""The format of OLMo 3 Think."""

GRANITE = AnswerFormat(tool_calls=(HERMES_CALLS, PHI_CALLS))
"""Granite 4 writes calls as Hermes does, Granite 3 those of Phi without the closing tag."""
