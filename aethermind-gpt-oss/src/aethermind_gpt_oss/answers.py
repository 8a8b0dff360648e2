"""The answer format of gpt-oss, OpenAI's harmony format: messages in the channels analysis, commentary and final."""

from __future__ import annotations

from aethermind.text import AnswerFormat

__all__ = ["GPT_OSS"]

GPT_OSS = AnswerFormat(is_harmony=True)
