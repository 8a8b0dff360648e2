"""Reasoning and tool call formats of these families' chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

LLAMA = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""Llama 3 writes the JSON of a call without tags; models fine-tuned on Hermes data write tags around it."""

MISTRAL = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""A list of calls follows the control token [TOOL_CALLS], which is not part of the text."""

SMOLLM3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))

OLMO3 = AnswerFormat(reasoning=("<think>", "</think>"))
"""The format of OLMo 3 Think."""
