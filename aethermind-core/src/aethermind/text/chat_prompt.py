"""The prompt of a conversation: messages checked, and written out by the model's chat template or a given one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from aethermind.errors import InvalidArgumentError
from aethermind.text.chat_templates import choose_template

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["Message", "RESERVED_NAMES", "TemplateOptions", "WrittenChat", "chat_prompt"]

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`, of JSON types; further keys are the template's business.

The content may be in parts, `[{"type": "text", "text": "…"}]`, as OpenAI's clients write it.
"""


RESERVED_NAMES = frozenset({"messages", "add_generation_prompt"})
"""Names of the template that `chat_template_kwargs` cannot set."""


class WrittenChat(str):
    """A conversation as a template wrote it, special tokens and all: nothing is put around it when it is encoded.

    Templates of Llama and Mistral write the BOS token, which would otherwise come twice.
    """

    __slots__ = ()


class TemplateOptions(TypedDict, total=False):
    """How messages become a prompt; each may be left out."""

    chat_template: str | None
    """Jinja source to use in place of the model's, or the name of one of the model's."""
    add_generation_prompt: bool
    """End where the assistant's answer begins (the default)."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions the model may call, as JSON schemas."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Further names for the template."""


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[Message], **options: Unpack[TemplateOptions]) -> WrittenChat:
    """Return the prompt of `messages`.

    Raises InvalidArgumentError for messages that are none, TokenizerError where there is no template or it fails.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise InvalidArgumentError(
            f'A conversation is a list of {{"role", "content"}} with at least one message, got {messages!r:.80}.'
        )
    _check_options(options)
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidArgumentError(
                f'A chat message is {{"role": "user", "content": "…"}} or alike, got {message!r:.80}.'
            )
    template = choose_template(
        tokenizer.chat_templates, options.get("chat_template"), has_tools=options.get("tools") is not None
    )
    from aethermind.text.chat_template import render_chat

    names = {
        **tokenizer.special_tokens,
        "tools": options.get("tools"),
        **(options.get("chat_template_kwargs") or {}),
    }
    plain = [_with_plain_content(message) for message in messages]
    add_generation_prompt = options.get("add_generation_prompt", True)
    return WrittenChat(render_chat(template, plain, add_generation_prompt=add_generation_prompt, **names))


def _with_plain_content(message: Message) -> Message:
    """With one text for the parts of a content that has nothing but text: few templates know parts."""
    parts = message.get("content")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        return message
    if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return message
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f'A part of a message is {{"type": "text", "text": "…"}}, got {parts!r:.80}.')
    return {**message, "content": "".join(texts)}


def _check_options(options: Mapping[str, Any]) -> None:
    known = tuple(TemplateOptions.__annotations__)
    if unknown := sorted(set(options) - set(known)):
        raise InvalidArgumentError(f"A chat has no option {unknown[0]!r}; there are {', '.join(known)}.")
    names = options.get("chat_template_kwargs") or {}
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"chat_template_kwargs should be a mapping with names as keys, got {names!r:.80}.")
    if taken := sorted(RESERVED_NAMES & set(names)):
        raise InvalidArgumentError(f"chat_template_kwargs cannot set {taken[0]}, which is an argument of its own.")
