"""Tokenizes prompts of all forms into token ids and embeddings, and checks that the model can serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.model.input_processor import EmbeddingSpan
from aethermind.text.chat_prompt import ContinuedChat, RenderedChat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.requests.request import RequestOptions
    from aethermind.model.input_processor import InputProcessor
    from aethermind.sampling.params import SamplingParams
    from aethermind.text.tokenizer import Tokenizer

__all__ = [
    "EnginePrompt",
    "Prompt",
    "PromptReader",
    "TextToEmbed",
    "check_embeddings",
    "check_prompt",
    "check_text",
    "check_token_ids",
]

Prompt = str | Mapping[str, Any]
"""A text, or a mapping with one of `prompt`, `prompt_token_ids` and `prompt_embeds` (float [n, hidden_size]).

`multi_modal_data` may accompany the first two: the inputs of the model's input processor by modality.
"""

_LONG_TEXT_CHARS = 8192
"""Texts from this length on are tokenized in a thread."""
_MAX_CHARS_PER_TOKEN = 16
"""A text with more characters than this for each token of the context does not fit, unless most of it is spaces."""
_TRUNCATION_CHARS_PER_TOKEN = 64
"""To truncate a text, this many characters per token are encoded first, which is nearly always enough."""
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "prompt_embeds")
_PLACEHOLDER_ID = 0
"""The token id at the positions of a prompt that is given as embeddings."""


class TextToEmbed(str):
    """A text to embed: it is truncated to the length that the model prescribes for embeddings."""

    __slots__ = ()

    @classmethod
    def of(cls, prompt: Prompt) -> Prompt:
        """Return the prompt with its text, if it has one, marked as a text to embed."""
        if isinstance(prompt, str):
            return cls(prompt)
        is_text = isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str)
        return {**prompt, "prompt": cls(prompt["prompt"])} if is_text else prompt


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """A tokenized prompt, the argument of `Engine.add_request`.

    `text` is None for prompts that were not given as text. `is_chat` says whether the answer is a message of its own.
    """

    text: str | None
    token_ids: Sequence[int]
    embeddings: tuple[EmbeddingSpan, ...] = ()
    is_chat: bool = False

    def tokens_to_embed(self) -> Sequence[int]:
        """Return the token ids of a text to embed; InvalidArgumentError if the prompt has input embeddings."""
        if self.embeddings:
            raise InvalidArgumentError("embed takes texts and token ids; leave prompt_embeds and images out.")
        return self.token_ids


class PromptReader:
    """Tokenizes prompts for one model. Its input processor is opened when a prompt first needs it.

    If `max_model_len` is given, a text that is far too long is rejected after a part of it is encoded.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        architecture: str,
        open_processor: Callable[[], InputProcessor | None],
        *,
        max_model_len: int | None = None,
        text_limit: int | None = None,
    ) -> None:
        """`text_limit` is the number of tokens to which a `TextToEmbed` is truncated; None for no limit."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._text_limit = text_limit
        self._architecture = architecture
        self._open_processor = open_processor

    @classmethod
    def of(
        cls, compiled: CompiledModel, tokenizer: Tokenizer, open_processor: Callable[[], InputProcessor | None]
    ) -> PromptReader:
        """Create a reader for a compiled model."""
        return cls(
            tokenizer,
            compiled.architecture,
            open_processor,
            max_model_len=None if compiled.config.context_shift else compiled.max_model_len,
            text_limit=compiled.source.text_limit(),
        )

    async def read_beside(self, prompt: Any) -> EnginePrompt:
        """Like `read`, but long texts are tokenized in a thread, so that the event loop is not blocked."""
        import asyncio

        is_long = isinstance(prompt, str) and len(prompt) >= _LONG_TEXT_CHARS
        return await asyncio.to_thread(self.read, prompt) if is_long else self.read(prompt)

    def read(self, prompt: Any) -> EnginePrompt:
        """Read one prompt; InvalidArgumentError if it is malformed, ContextLengthError if it is far too long."""
        if isinstance(prompt, EnginePrompt):
            return prompt
        if isinstance(prompt, str):
            return self._read_text(prompt)
        if not isinstance(prompt, Mapping):
            raise _malformed(prompt)
        key = _prompt_key(prompt)
        content = prompt[key]
        if key == "prompt_embeds":
            values = _embeddings(content)
            return EnginePrompt(None, [_PLACEHOLDER_ID] * len(values), (EmbeddingSpan(0, values),))
        if not (isinstance(content, str) if key == "prompt" else _is_token_ids(content)):
            raise _malformed(prompt)
        text = str(content) if key == "prompt" else None
        data = prompt.get("multi_modal_data")
        if not data:
            return EnginePrompt(None, content) if text is None else self._read_text(content)
        processed = self._processor_for(data).process(content, data, self._tokenizer)
        return EnginePrompt(text, processed.token_ids, tuple(processed.embeddings))

    def _read_text(self, text: str) -> EnginePrompt:
        """Encode a text, with the special tokens of the tokenizer unless a chat template has written them."""
        if isinstance(text, TextToEmbed) and self._text_limit is not None:
            return EnginePrompt(str(text), self._truncate(text, self._text_limit))
        max_len = self._max_model_len
        if max_len is not None and len(text) > 2 * _MAX_CHARS_PER_TOKEN * max_len:
            num_tokens = len(self._tokenizer.encode(text[: _MAX_CHARS_PER_TOKEN * max_len]))
            if num_tokens > 2 * max_len:  # tokens at the cut may differ, but not half of all tokens
                raise ContextLengthError(
                    f"The beginning of the prompt alone has {num_tokens} tokens, of {len(text)} characters in all, and "
                    f"the context holds {max_len}. Shorten the prompt."
                )
        token_ids = self._tokenizer.encode(text, add_special_tokens=not isinstance(text, RenderedChat))
        is_chat = isinstance(text, RenderedChat) and not isinstance(text, ContinuedChat)
        return EnginePrompt(str(text), token_ids, is_chat=is_chat)

    def _truncate(self, text: str, limit: int) -> list[int]:
        """Return the first `limit` tokens of a text, including the special tokens before and after it."""
        prefix = text[: limit * _TRUNCATION_CHARS_PER_TOKEN]
        plain = self._tokenizer.encode(prefix)
        if len(prefix) < len(text) and len(plain) <= 2 * limit:
            prefix, plain = text, self._tokenizer.encode(text)
        with_special = self._tokenizer.encode(prefix, add_special_tokens=True)
        num_special = len(with_special) - len(plain)
        num_before = next(
            (i for i in range(num_special) if with_special[i : i + len(plain)] == plain), num_special
        )  # special tokens before the text
        num_kept = max(min(limit - num_special, len(plain)), 0)
        return [*with_special[: num_before + num_kept], *with_special[num_before + len(plain) :]]

    @cached_property
    def _processor(self) -> InputProcessor | None:
        return self._open_processor()

    def _processor_for(self, data: Any) -> InputProcessor:
        if not isinstance(data, Mapping):
            raise InvalidArgumentError(
                f"multi_modal_data should be a mapping by modality, got {data!r:.80}.", param="multi_modal_data"
            )
        processor = self._processor
        if processor is None:
            raise InvalidArgumentError(
                f"The model takes text only: no installed package has an input processor for "
                f"{self._architecture}. Leave multi_modal_data out."
            )
        unknown = sorted(map(str, set(data) - processor.modalities))
        if unknown:
            known = ", ".join(sorted(processor.modalities))
            raise InvalidArgumentError(f"The model takes no {', '.join(unknown)} in multi_modal_data, only {known}.")
        return processor


def check_embeddings(spans: Sequence[EmbeddingSpan], num_tokens: int, hidden_size: int) -> None:
    """InvalidArgumentError unless the spans are in order, within the prompt, of width `hidden_size`, and finite."""
    import numpy as np

    position = 0
    for span in spans:
        if span.values.ndim != 2 or span.values.shape[1] != hidden_size or not len(span.values):
            raise InvalidArgumentError(
                f"Embeddings have the shape {list(span.values.shape)} but the model takes [n, {hidden_size}]."
            )
        if span.start < position or span.end > num_tokens:
            raise InvalidArgumentError(
                f"Embeddings for positions {span.start} to {span.end - 1} do not fit a prompt of {num_tokens} tokens "
                f"that has others up to position {position}; spans must be in order and without overlap."
            )
        if not np.isfinite(span.values).all():
            raise InvalidArgumentError(f"The embeddings from position {span.start} on contain NaN or infinity.")
        position = span.end


def _prompt_key(prompt: Mapping[str, Any]) -> str:
    """Return which of the three keys a prompt has; InvalidArgumentError unless it has exactly one."""
    keys = [key for key in _PROMPT_KEYS if key in prompt]
    unknown = sorted(map(str, set(prompt) - {*_PROMPT_KEYS, "multi_modal_data"}))
    if len(keys) != 1 or unknown or (keys == ["prompt_embeds"] and "multi_modal_data" in prompt):
        raise InvalidArgumentError(
            f"A prompt has one of {', '.join(_PROMPT_KEYS)}, the first two perhaps with multi_modal_data; "
            f"this one has {', '.join(map(str, prompt)) or 'nothing'}."
        )
    return keys[0]


def _is_token_ids(given: Any) -> bool:
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return False
    types = set(map(type, given))  # checking each token would take longer than the step of a short prompt
    return all(issubclass(type_, int) and not issubclass(type_, bool) for type_ in types)


def _embeddings(given: Any) -> npt.NDArray[np.float32]:
    import numpy as np

    try:
        values = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"prompt_embeds should be an array [n, hidden_size] of floats: {error}.", param="prompt_embeds"
        ) from None
    if values.ndim == 0:
        raise InvalidArgumentError(
            f"prompt_embeds should be an array [n, hidden_size] of floats, got {given!r:.80}.", param="prompt_embeds"
        )
    return values


def _malformed(given: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"A prompt is a string or {{'prompt_token_ids': [...]}} with integers, got {given!r:.80}."
    )


def check_prompt(
    compiled: CompiledModel, token_ids: Sequence[int], params: SamplingParams, options: RequestOptions
) -> None:
    """InvalidArgumentError for ids outside the vocabulary, ContextLengthError if the context has no slot for an output
    token.
    """
    if not compiled.generates:
        why = ": the checkpoint has no output matrix" if compiled.is_headless else ""
        raise InvalidArgumentError(
            f"{compiled.architecture} computes vectors of texts and generates nothing{why}. Use LLM.embed, or "
            "/v1/embeddings of a server."
        )
    if not token_ids:
        raise InvalidArgumentError("The prompt is empty; give it at least one token.")
    limit = compiled.max_model_len
    if len(token_ids) >= limit:
        raise ContextLengthError(
            f"The prompt has {len(token_ids)} tokens and the context holds {limit}, with at least one for the "
            "answer. Shorten the prompt, or raise max_model_len if the model allows it."
        )
    quota = options.max_context_tokens
    if quota is not None and len(token_ids) >= quota:
        raise ContextLengthError(
            f"The prompt has {len(token_ids)} tokens and the request's quota is {quota}, with at least one for the "
            "answer. Shorten the prompt, or raise max_context_tokens."
        )
    check_token_ids(compiled, (*token_ids, *params.stop_token_ids))


def check_text(compiled: CompiledModel, token_ids: Sequence[int]) -> None:
    """Check a text to embed: InvalidArgumentError for an empty one and for ids outside the vocabulary,
    ContextLengthError if it is longer than the context.
    """
    if not token_ids:
        raise InvalidArgumentError("The text is empty; give it at least one token.")
    if len(token_ids) > compiled.max_model_len:
        raise ContextLengthError(
            f"The text has {len(token_ids)} tokens, and the context holds {compiled.max_model_len}. Shorten it."
        )
    check_token_ids(compiled, token_ids)


def check_token_ids(compiled: CompiledModel, token_ids: Sequence[int]) -> None:
    """InvalidArgumentError for ids outside the model's vocabulary."""
    vocab_size = compiled.model.config.vocab_size
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    token_id = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
    raise InvalidArgumentError(
        f"Token id {token_id} is out of range: the vocabulary has {vocab_size} entries, numbered from 0."
    )
