"""Tool call formats of Llama's and Mistral's chat models."""

from __future__ import annotations

from aethermind.text import AnswerFormat

LLAMA = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""Llama 3 writes the bare JSON of a call; models fine-tuned on Hermes data wrap it in tags."""

MISTRAL = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""A list of calls follows the control token [TOOL_CALLS], which is not part of the text."""

SMOLLM3 = AnswerFormat(reasoning=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))

OLMO3 = AnswerFormat(reasoning=("<think>", "</think>"))
"""OLMo 3 Think writes its reasoning between these tags."""
