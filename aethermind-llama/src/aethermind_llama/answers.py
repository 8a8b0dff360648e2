"""How chat models of Llama and Mistral call functions."""

from __future__ import annotations

from aethermind.text import AnswerFormat

LLAMA = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""Llama 3 writes nothing but the call's JSON; models fine-tuned on Hermes' data have its tags."""

MISTRAL = AnswerFormat(tool_call=("<tool_call>", "</tool_call>"), has_bare_calls=True)
"""A list of calls stands behind [TOOL_CALLS], a control token, which is no text."""
