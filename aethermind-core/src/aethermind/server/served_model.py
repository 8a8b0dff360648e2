"""A served model: its name, its engine client, its tokenizer and the defaults of its sampling parameters."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aethermind.errors import ContextLengthError
from aethermind.log import get_logger
from aethermind.server.openai.errors import ApiError
from aethermind.text.answer_format import AnswerFormat
from aethermind.text.chat_template import variables_read
from aethermind.text.tool_call_probe import tool_call_warning

if TYPE_CHECKING:
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.engine.process import EngineProcess
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.serving.engine_client import EngineClient
    from aethermind.llm import LLM
    from aethermind.text.chat_templates import ChosenTemplate
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ServedModel"]

_log = get_logger(__name__)

_MAX_CONTEXT_MULTIPLE = 2
"""Prompts longer than this multiple of max_model_len are rejected early, before all of the text is tokenised.

Shorter ones are tokenised completely, so that the error can name the exact number of tokens.
"""

_CHARS_PER_TOKEN = 16
"""Upper bound of the mean characters per token; ordinary text has 3 or 4."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model under one name; `sampling_defaults` are those of its generation_config.json.

    An adapter (LoRA) of a model is served as a model with the adapter's name, whose `parent` is the base model's name.
    """

    name: str
    engine: EngineClient
    tokenizer: Tokenizer
    info: ModelInfo
    sampling_defaults: dict[str, Any]
    vocab_size: int
    answer_format: AnswerFormat
    created: int = field(default_factory=lambda: int(time.time()))
    parent: str | None = None

    @property
    def adapter(self) -> str:
        """The name of the adapter; empty for the base model."""
        return "" if self.parent is None else self.name

    def with_adapters(self) -> list[ServedModel]:
        """The model and one served model for each of its adapters."""
        return [self, *(replace(self, name=name, parent=self.name) for name in self.info.adapters)]

    def with_chat_template(self, chosen: ChosenTemplate) -> ServedModel:
        """The model with another chat template; AetherMindError if the template is unknown or has a syntax error."""
        source = chosen.of(self.tokenizer.chat_templates)
        variables_read(source)  # compiles the template, so that a syntax error is found at start
        tokenizer = self.tokenizer.with_chat_template(source)
        return replace(self, tokenizer=tokenizer, answer_format=self.answer_format.for_tokens(tokenizer))

    def with_checked_calls(self) -> ServedModel:
        """The model itself. Logs a warning if calls that its chat template writes will not be read."""
        if (warning := tool_call_warning(self.tokenizer, self.answer_format)) is not None:
            _log.warning("Tool calls of %s will not be read: %s", self.name, warning)
        return self

    @property
    def visible_token_ids(self) -> tuple[int, ...]:
        """The special tokens that the parser of answers needs in their text."""
        ids = (self.tokenizer.token_to_id(token) for token in self.answer_format.control_tokens)
        return tuple(token_id for token_id in ids if token_id is not None)

    @classmethod
    def of(cls, name: str, llm: LLM, engine: EngineClient) -> ServedModel:
        """A loaded model that `engine` runs in this process."""
        compiled = llm.engine.compiled
        vocab_size = compiled.model.config.vocab_size
        format = llm.engine.parts.answer_format.for_tokens(llm.tokenizer)
        return cls(name, engine, llm.tokenizer, llm.info, llm.sampling_defaults, vocab_size, format)

    @classmethod
    def of_process(cls, name: str, engine: EngineProcess) -> ServedModel:
        """A model whose engine runs in a process of its own."""
        frontend, loaded = engine.frontend, engine.loaded
        return cls(
            name,
            engine,
            frontend.tokenizer,
            loaded.info,
            loaded.sampling_defaults,
            loaded.vocab_size,
            frontend.answer_format.for_tokens(frontend.tokenizer),
        )

    @classmethod
    def unloaded(cls, name: str) -> ServedModel:
        """A model that is not loaded, for responses without tokens. It has neither an engine nor a tokenizer."""
        missing: Any = None
        return cls(name, missing, missing, missing, {}, sys.maxsize, AnswerFormat())

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """Tokenise a prompt.

        Without a context shift, ContextLengthError if the beginning of a text alone has too many tokens (see
        `check_length`). Tokenising megabytes of text would take seconds.
        """
        limit = self.info.max_model_len
        if not self.info.has_context_shift and isinstance(prompt, str) and len(prompt) > limit * _CHARS_PER_TOKEN:
            beginning = await self.engine.read(type(prompt)(prompt[: limit * _CHARS_PER_TOKEN]))
            self.check_length(len(beginning.token_ids))
        return await self.engine.read(prompt)

    async def read_all(self, prompts: Sequence[Prompt], field: str) -> list[EnginePrompt]:
        """Tokenise the prompts of a request, and check prompts that are given as token ids.

        ApiError 400, which names `field`, for invalid token ids. Between two prompts the event loop runs other tasks,
        because thousands of short prompts take as long as a long one.
        """
        tokenized = []
        for prompt in prompts:
            tokenized.append(await self.read(prompt))
            await asyncio.sleep(0)
        for prompt_tokens in tokenized:
            if prompt_tokens.text is None:
                self.check_token_ids(prompt_tokens.token_ids, field)
        return tokenized

    def check_length(self, num_tokens: int) -> None:
        """Raise ContextLengthError for more than `_MAX_CONTEXT_MULTIPLE` times max_model_len tokens."""
        limit = self.info.max_model_len
        if num_tokens > _MAX_CONTEXT_MULTIPLE * limit:
            raise ContextLengthError(
                f"The context length is {limit} tokens, and the prompt has {num_tokens} or more. Shorten it."
            )

    def check_token_ids(self, token_ids: Collection[int], field: str) -> None:
        """Raise ApiError 400, which names `field`, if one of its token ids is outside the vocabulary."""
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            invalid = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise ApiError(
                400,
                f"{field} has the token id {min(invalid, 2**63)}, which is out of range: the vocabulary has "
                f"{self.vocab_size} entries, numbered from 0.",
                param=field,
                code="invalid_value",
            )
