"""The prompt of a conversation: messages rendered by a chat template, and encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text.chat_templates import DEFAULT_TEMPLATE, TOOL_USE_TEMPLATE

if TYPE_CHECKING:
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "ContinuedChat",
    "ConversationTokenCache",
    "Message",
    "RESERVED_NAMES",
    "RenderedChat",
    "THINKING_VARIABLES",
    "TemplateOptions",
    "chat_prompt",
    "choose_template",
    "template_variables",
]

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`, of JSON types; other keys are passed to the template.

The content may be in parts, `[{"type": "text", "text": "…"}]`, as OpenAI's clients write it.
"""


RESERVED_NAMES = frozenset({"messages", "add_generation_prompt"})
"""Variables of the template that `chat_template_kwargs` cannot set."""

THINKING_VARIABLES = ("enable_thinking", "thinking")
"""The variables by which chat templates turn reasoning on and off: Qwen's and GLM's, DeepSeek's and Granite's."""


class RenderedChat(str):
    """A conversation rendered by a template, with special tokens: none are added when it is encoded.

    The templates of Llama and Mistral write the BOS token, which encoding would otherwise add a second time.
    """

    __slots__ = ()


class ContinuedChat(RenderedChat):
    """A conversation that ends within the assistant's last message: the answer continues the message's text."""

    __slots__ = ()


class TemplateOptions(TypedDict, total=False):
    """Options of `chat_prompt`; each may be omitted."""

    chat_template: str | None
    """Jinja source to use instead of the model's, or the name of one of the model's."""
    add_generation_prompt: bool
    """End the prompt where the assistant's answer begins (the default)."""
    continue_final_message: bool
    """End the prompt with the content of the last message, which the answer continues (no by default)."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions the model may call, as JSON schemas."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Further variables for the template."""


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[Message], **options: Unpack[TemplateOptions]) -> RenderedChat:
    """Return the prompt of `messages`.

    If the template refuses the order of their roles, messages of the system and of the user are joined, as in
    `_with_plainer_roles`.

    Raises InvalidArgumentError for malformed messages, TokenizerError where there is no template or it fails.
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
    variables = {
        **tokenizer.special_tokens,
        "tools": options.get("tools"),
        **(options.get("chat_template_kwargs") or {}),
    }
    with_plain_contents = [_with_plain_content(message) for message in messages]
    if options.get("continue_final_message", False):
        with_plain_contents[-1] = _with_mark(with_plain_contents[-1])
        whole = _rendered(template, with_plain_contents, {**variables, "add_generation_prompt": False})
        text, mark, _ = whole.rpartition(_END_OF_MESSAGE)
        if not mark:
            raise TokenizerError(
                "The chat template does not write the last message's content as it is, so the message cannot be "
                "continued. End the conversation with a message of the user."
            )
        return ContinuedChat(text)
    variables["add_generation_prompt"] = options.get("add_generation_prompt", True)
    return RenderedChat(_rendered(template, with_plain_contents, variables))


def _rendered(template: str, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
    """Render messages, or if the template refuses them, their text with plainer roles."""
    from aethermind.text.chat_template import RefusedMessagesError, render_chat

    try:
        return render_chat(template, messages, **variables)
    except RefusedMessagesError as error:
        for plainer in _with_plainer_roles(messages):
            with suppress(RefusedMessagesError):
                return render_chat(template, plainer, **variables)
        raise error


def _with_plainer_roles(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages with one message of the system, at the beginning, and then with none.

    Coding agents have several, also at the end. Later ones become the user's, and messages of the user that follow each
    other become one, because many templates want the roles to alternate.
    """
    num_leading = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
    users = [{**each, "role": "user"} if each["role"] == "system" else each for each in messages]
    yield [*_joined(messages[:num_leading]), *_joined(users[num_leading:])]
    yield _joined(users)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Join the texts of messages of the system, or of the user, that follow each other."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else {}
        texts = (last.get("content"), message.get("content"))
        is_same = message["role"] in ("system", "user") and last.get("role") == message["role"]
        if is_same and all(isinstance(text, str) for text in texts):
            joined[-1] = {**last, "content": "\n\n".join(map(str, texts))}
        else:
            joined.append(message)
    return joined


_END_OF_MESSAGE = "\ue0f5END\ue0f5"
"""Marks the end of the content that is continued: private characters, which no conversation has."""


def _with_mark(message: Message) -> Message:
    """Append the mark to a message's content; InvalidArgumentError for a message that has no text at its end."""
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, str) or not content or message.get("tool_calls"):
        raise InvalidArgumentError(
            "continue_final_message continues the text of the last message, which has to be the assistant's, with text "
            "and without calls.",
            param="continue_final_message",
        )
    return {**message, "content": content + _END_OF_MESSAGE}


def choose_template(templates: Mapping[str, str], given: str | None, *, has_tools: bool) -> str:
    """Return the Jinja source for a conversation: the template named `given`, or `given` itself unless it is empty.

    TokenizerError where none is given and the model has none for the conversation.
    """
    if given:
        return templates.get(given, given)
    if has_tools and TOOL_USE_TEMPLATE in templates:
        return templates[TOOL_USE_TEMPLATE]
    if DEFAULT_TEMPLATE in templates:
        return templates[DEFAULT_TEMPLATE]
    if templates:
        raise TokenizerError(
            f"The model has chat templates for {', '.join(sorted(templates))} and none for all conversations. Name one "
            "of them as chat_template, or give a template as Jinja source."
        )
    raise TokenizerError(
        "The model has no chat template, so it is probably no chat model. Continue a text with `generate` instead, or "
        "give a template as Jinja source."
    )


def template_variables(templates: Mapping[str, str], *, has_tools: bool) -> frozenset[str] | None:
    """Return the variables that the template for a conversation reads; None if it is missing or does not compile."""
    from aethermind.text.chat_template import variables_read

    try:
        return variables_read(choose_template(templates, None, has_tools=has_tools))
    except TokenizerError:
        return None


def _with_plain_content(message: Message) -> Message:
    """Join the parts of a content that consists of text parts only, because few templates support parts."""
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
    """InvalidArgumentError for unknown options, and for template variables that cannot be set."""
    known = tuple(TemplateOptions.__annotations__)
    if unknown := sorted(set(options) - set(known)):
        raise InvalidArgumentError(f"A chat has no option {unknown[0]!r}; there are {', '.join(known)}.")
    variables = options.get("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise InvalidArgumentError(
            f"chat_template_kwargs should be a mapping with names as keys, got {variables!r:.80}.",
            param="chat_template_kwargs",
        )
    if reserved := sorted(RESERVED_NAMES & set(variables)):
        raise InvalidArgumentError(
            f"chat_template_kwargs cannot set {reserved[0]}, which is a separate argument.",
            param="chat_template_kwargs",
        )


class ConversationTokenCache:
    """Encodes the growing prompts of one conversation, reusing the tokens that answers were generated with. Mutable.

    The prefix cache matches tokens, and encoding the text of an answer may give others than those that were generated.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known_prefixes: list[tuple[str, list[int]]] = []

    def encode(self, prompt: str) -> list[int]:
        """Return the token ids of `prompt`: those of its longest cached prefix, and the rest encoded.

        Cached texts that are not a prefix of `prompt` are dropped: earlier messages were changed.
        """
        while self._known_prefixes and not prompt.startswith(self._known_prefixes[-1][0]):
            self._known_prefixes.pop()
        text, token_ids = self._known_prefixes[-1] if self._known_prefixes else ("", [])
        return [*token_ids, *self._tokenizer.encode(prompt[len(text) :])]

    def add_answer(self, prompt: str, prompt_token_ids: Sequence[int], answer: str, token_ids: Sequence[int]) -> None:
        """Cache an answer, if its tokens, with or without the last one, decode to exactly its text."""
        for candidate in (token_ids, token_ids[:-1]):
            if self._tokenizer.decode(candidate, skip_special_tokens=False) == answer:
                self._known_prefixes.append((prompt + answer, [*prompt_token_ids, *candidate]))
                return
