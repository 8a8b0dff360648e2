"""Format of answers of gpt-oss, OpenAI's harmony format.

A model writes messages to channels: thoughts to `analysis`, the answer to `final`, calls to `commentary`. They are
separated by control tokens, which are not part of the text, so that the names of channels are what marks them:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

Calls (`commentary to=functions.NAME json{…}`) are not read out of the text: the name is not part of their JSON. An
answer without thoughts begins with the name of its channel, `final`.
"""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["GPT_OSS"]

GPT_OSS = AnswerFormat(reasoning=("analysis", "assistantfinal"))
