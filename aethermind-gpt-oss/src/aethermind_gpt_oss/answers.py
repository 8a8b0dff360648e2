"""The answer format of gpt-oss, OpenAI's harmony format.

A model writes messages to channels: reasoning to `analysis`, content to `final`, tool calls to `commentary`. Messages
are separated by control tokens, which are not part of the text, so that the names of channels serve as tags:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

Tool calls (`commentary to=functions.NAME json{…}`) are not parsed, because the name is not part of their JSON. An
answer without reasoning begins with the name of its channel, `final`.
"""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["GPT_OSS"]

GPT_OSS = AnswerFormat(reasoning=("analysis", "assistantfinal"))
