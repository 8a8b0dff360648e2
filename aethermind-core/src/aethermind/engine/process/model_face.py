"""What can be done with a model without its weights: read prompts, write conversations, tell answers apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aethermind.engine.requests.prompt_reader import PromptReader

if TYPE_CHECKING:
    from aethermind.model.input_processor import InputProcessor
    from aethermind.runtime import Runtime
    from aethermind.text.answer_parser import AnswerFormat
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["ModelFace"]


@dataclass(frozen=True, slots=True)
class ModelFace:
    """The side of a model that a server shows, in its own process."""

    tokenizer: Tokenizer
    prompts: PromptReader
    answer_format: AnswerFormat

    @classmethod
    def open(cls, runtime: Runtime, model: str | Path, tokenizer: str | None = None) -> ModelFace:
        """Read configuration and tokenizer, perhaps one from elsewhere; weights stay where they are. ConfigError and
        TokenizerError say what is wrong with them.
        """
        source = runtime.open_source(model, tokenizer)
        raw = source.config()
        architecture = runtime.architectures.name_in(raw, source.path)
        found = source.tokenizer()
        found.read_whole()
        factory = runtime.input_processors.find(architecture)

        def open_processor() -> InputProcessor | None:
            return None if factory is None else factory.create(raw, source.weights())

        prompts = PromptReader(found, architecture, open_processor, text_limit=source.text_limit())
        return cls(found, prompts, runtime.answer_formats.find(architecture))
