"""Text processing: chat templates, tokenisation, incremental detokenisation, stop strings and answer parsing.

    Tokenizer      one model's vocabulary: encode, decode, special tokens
    chat_prompt    messages → prompt, by the model's own template or another
    render_chat    messages → prompt, by one Jinja template in a sandbox
    Detokenizer    token ids → text deltas, one token at a time, in whole characters
    AnswerFormat   the tags with which a model marks reasoning and tool calls in its output
    StopChecker    text deltas → text deltas up to the first stop string

Names are imported on first use: importing this package imports neither jinja2 nor tokenizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aethermind.text.answer_format import AnswerFormat
    from aethermind.text.chat_prompt import chat_prompt
    from aethermind.text.chat_template import render_chat
    from aethermind.text.detokenizer import Detokenizer
    from aethermind.text.stop_strings import StopChecker, StopResult
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["AnswerFormat", "Detokenizer", "StopChecker", "StopResult", "Tokenizer", "chat_prompt", "render_chat"]

_MODULE_OF_NAME = {
    "AnswerFormat": "answer_format",
    "Detokenizer": "detokenizer",
    "StopChecker": "stop_strings",
    "StopResult": "stop_strings",
    "Tokenizer": "tokenizer",
    "chat_prompt": "chat_prompt",
    "render_chat": "chat_template",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
