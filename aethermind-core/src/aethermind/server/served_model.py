"""A model as the server knows it: its name, the engine that runs it, and what requests leave unsaid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.server.openai.errors import ApiError
from aethermind.text.chat_template import names_read

if TYPE_CHECKING:
    from aethermind.engine.observation.model_info import ModelInfo
    from aethermind.engine.process import EngineProcess
    from aethermind.engine.requests.prompt_reader import EnginePrompt, Prompt
    from aethermind.engine.serving.engine_client import EngineClient
    from aethermind.llm import LLM
    from aethermind.text.answer_parser import AnswerFormat
    from aethermind.text.chat_templates import ChosenTemplate
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ServedModel", "ServedModels"]

_FAR_TOO_LONG = 2
"""Contexts that no more than are written in tokens or read from them: more is no mistake in counting."""

_BEGINNING_CHARS = 16
"""Characters for each token of the context that are tokenised before the rest of a text. Text has 3 or 4 a token."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model behind one name; `sampling_defaults` are those of its generation_config.json.

    A model with one of its adapters has the adapter's name, and its `parent` is the model's.
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
        """The adapter that answers, by its name; empty for none."""
        return "" if self.parent is None else self.name

    def with_adapters(self) -> list[ServedModel]:
        """The model, and with each of its adapters."""
        return [self, *(replace(self, name=name, parent=self.name) for name in self.info.adapters)]

    def with_chat_template(self, chosen: ChosenTemplate) -> ServedModel:
        """The model with this chat template in place of its own; an AetherMindError where it is none."""
        source = chosen.of(self.tokenizer.chat_templates)
        names_read(source)  # a template with a syntax error is found now, and by no request
        return replace(self, tokenizer=self.tokenizer.with_chat_template(source))

    @classmethod
    def of(cls, name: str, llm: LLM, engine: EngineClient) -> ServedModel:
        """A loaded model, run by `engine` from now on."""
        llm.tokenizer.read_whole()
        planned = llm.engine.planned
        vocab_size = planned.model.config.vocab_size
        format = planned.answer_format.for_tokens(llm.tokenizer)
        return cls(name, engine, llm.tokenizer, llm.info, llm.sampling_defaults, vocab_size, format)

    @classmethod
    def of_process(cls, name: str, engine: EngineProcess) -> ServedModel:
        """A model whose engine was started in a process of its own."""
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

    async def read(self, prompt: Prompt) -> EnginePrompt:
        """A prompt as token ids. A text that is far too long is refused by its beginning: megabytes take seconds."""
        limit = self.info.max_model_len
        if isinstance(prompt, str) and len(prompt) > limit * _BEGINNING_CHARS:
            beginning = await self.engine.read(type(prompt)(prompt[: limit * _BEGINNING_CHARS]))
            self.check_length(len(beginning.token_ids))
        return await self.engine.read(prompt)

    async def read_all(self, prompts: Sequence[Prompt]) -> list[EnginePrompt]:
        """Prompts as token ids, with turns of the event loop between them: many short ones take as long as a long."""
        read = []
        for prompt in prompts:
            read.append(await self.read(prompt))
            await asyncio.sleep(0)
        return read

    def check_length(self, num_tokens: int) -> None:
        """ContextLengthError for so many tokens that nobody can have a use for them."""
        limit = self.info.max_model_len
        if num_tokens > _FAR_TOO_LONG * limit:
            raise ContextLengthError(
                f"The context holds {limit} tokens, and there are {num_tokens} or more. Shorten it."
            )


class ServedModels:
    """The models of a server by name, and their adapters by theirs."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """InvalidArgumentError where an adapter has a name that is taken."""
        self.loaded = tuple(models)
        """Those with an engine of their own."""
        self._models: dict[str, ServedModel] = {}
        for model in chain.from_iterable(one.with_adapters() for one in models):
            if model.name in self._models:
                raise InvalidArgumentError(
                    f"Two models are called {model.name!r:.80}; give the adapter another name by NAME=PATH."
                )
            self._models[model.name] = model

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def get(self, name: str) -> ServedModel:
        """The model of that name; ApiError 404 names those there are."""
        if name not in self._models:
            raise ApiError(
                404,
                f"There is no model {name!r:.100}; this server has {', '.join(self._models)}.",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    @property
    def failure(self) -> str | None:
        """Which engine serves nothing, and why; None while all do."""
        return next(
            (f"{one.name}: {failure}" for one in self.loaded if (failure := one.engine.failure) is not None), None
        )
