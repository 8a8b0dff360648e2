"""Input processors, with which a model package turns images or audio in a prompt into embeddings.

A processor decides where in the prompt the embeddings are placed, and which token ids are placeholders for them (for
instance the id of `<image>`, once for each embedding). The model reads the embeddings instead of those of the ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.checkpoint.source import TensorSource
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["EmbeddingSpan", "InputProcessor", "InputProcessorFactory", "ProcessedPrompt"]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingSpan:
    """Embeddings of the positions `start` … `end` - 1 of a prompt: `values`, float32 [end - start, hidden_size]."""

    start: int
    values: npt.NDArray[np.float32]

    @property
    def end(self) -> int:
        """The first position after the span."""
        return self.start + len(self.values)

    def digest(self) -> bytes:
        """Return a hash of the span's position and values, 16 bytes, for the prefix cache."""
        return blake2b(self.start.to_bytes(8, "little") + self.values.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ProcessedPrompt:
    """The token ids of a prompt, and the embeddings that replace those of some ids, in ascending order, disjoint."""

    token_ids: Sequence[int]
    embeddings: tuple[EmbeddingSpan, ...]


class InputProcessor(Protocol):
    """The input processor of one loaded model. Errors in the user's data are InvalidArgumentErrors."""

    modalities: frozenset[str]
    """The keys of `multi_modal_data` that it accepts, such as `image`."""

    def process(self, prompt: str | Sequence[int], data: Mapping[str, Any], tokenizer: Tokenizer) -> ProcessedPrompt:
        """Merge `data`, by modality, into a prompt given as text or as token ids."""


class InputProcessorFactory(Protocol):
    """Makes the input processors of one architecture; `register_input_processors` registers it."""

    def create(self, raw: Mapping[str, Any], weights: TensorSource) -> InputProcessor:
        """Make the processor of a model from config.json's contents and the checkpoint's tensors."""
